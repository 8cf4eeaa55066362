"""What a stream knows of tables whose rows in the lake may be stale: when one cause more is to be told."""

from menura.v1 import changes_pb2
from menura.v1.config_pb2 import TableName

from agent.capture.stale_tables import StaleTables

Kind = changes_pb2.TableEvent
ORDERS = ("shop", "orders")


def heard(stale: StaleTables, gsn: int, kind: Kind.Kind.ValueType, **said: object) -> bool:
    stale.heard(Kind(table=TableName(database="shop", table="orders"), gsn=gsn, kind=kind, **said))
    return stale.is_told(ORDERS)


def test_cause_when_it_was_told_then_counts_until_a_dump_begins_or_ends() -> None:
    stale = StaleTables(())
    assert heard(stale, 1, Kind.ROWS_UNLOGGED, unlogged_changes="UPDATE was logged as a statement", reread=True)
    assert not heard(stale, 2, Kind.DUMP_STARTED)
    assert heard(stale, 3, Kind.ROWS_UNLOGGED, unlogged_changes="again", reread=True)
    assert not heard(stale, 4, Kind.DUMPED, removes_rows_before_gsn=2)


def test_cause_when_a_verification_begins_then_what_changes_from_there_on_is_told_again() -> None:
    """It may stand for the dump: what a foreign key or a statement does from its beginning on nobody else tells."""
    stale = StaleTables(())
    assert heard(stale, 1, Kind.LOG_GAP, unlogged_changes="the log was purged", reread=True) and stale.waits(ORDERS)
    assert not heard(stale, 2, Kind.VERIFICATION_STARTED, tells_anew=True) and not stale.waits(ORDERS)
    assert not heard(stale, 3, Kind.VERIFIED) and not stale.waits(ORDERS)
    assert ORDERS in stale, "nobody has told that its rows are the source's"
    assert heard(stale, 4, Kind.FOREIGN_KEYS, unlogged_changes="a foreign key may have acted") and stale.waits(ORDERS)
    assert not heard(stale, 5, Kind.DUMP_STARTED) and not stale.waits(ORDERS)
    heard(stale, 6, Kind.DUMPED, removes_rows_before_gsn=5)
    assert ORDERS not in stale


def test_dump_when_a_verification_began_behind_a_cause_that_it_does_not_heal_then_the_table_stays_stale() -> None:
    stale = StaleTables(())
    heard(stale, 1, Kind.DUMP_STARTED)
    heard(stale, 2, Kind.ROWS_UNLOGGED, unlogged_changes="of no statement")
    heard(stale, 3, Kind.VERIFICATION_STARTED, tells_anew=True)
    heard(stale, 4, Kind.DUMPED, removes_rows_before_gsn=1)
    assert ORDERS in stale and not stale.waits(ORDERS)


def test_cause_when_it_is_known_from_before_the_stream_then_does_not_count() -> None:
    """A dump that had failed and goes on is not announced again, and brings rows of before."""
    sync = changes_pb2.TableSync(table=TableName(database="shop", table="orders"), unlogged_gsn=150)
    stale = StaleTables([sync])
    assert stale.waits(ORDERS) and not stale.is_told(ORDERS)


def begun(**said: int) -> StaleTables:
    """A stream that begins with this of the table."""
    return StaleTables([changes_pb2.TableSync(table=TableName(database="shop", table="orders"), **said)])


def test_stream_when_it_begins_behind_a_verification_then_what_changes_from_there_on_is_told_again() -> None:
    stale = begun(unlogged_gsn=11, compared_gsn=20)
    assert not stale.waits(ORDERS) and ORDERS in stale
    assert heard(stale, 30, Kind.FOREIGN_KEYS, unlogged_changes="a foreign key may have acted") and stale.waits(ORDERS)


def test_dump_of_before_the_gap_when_it_goes_on_beside_a_verification_then_it_does_not_heal_the_table() -> None:
    stale = begun(unlogged_gsn=11, dump_gsn=5, compared_gsn=20)
    heard(stale, 30, Kind.DUMPED, removes_rows_before_gsn=5)
    assert ORDERS in stale and not stale.waits(ORDERS)


def test_table_when_it_is_truncated_behind_a_verification_then_nothing_of_it_is_stale() -> None:
    stale = begun(unlogged_gsn=11, compared_gsn=20)
    heard(stale, 30, Kind.TRUNCATED, removes_rows=True)
    assert ORDERS not in stale


def test_verification_when_it_was_not_ordered_in_a_dumps_place_then_it_changes_nothing() -> None:
    stale = begun(unlogged_gsn=11)
    heard(stale, 20, Kind.VERIFICATION_STARTED)
    assert stale.waits(ORDERS) and not stale.is_told(ORDERS)
    assert heard(stale, 21, Kind.LOG_GAP, unlogged_changes="the log was purged")
    assert heard(stale, 22, Kind.VERIFICATION_STARTED) and stale.waits(ORDERS)
