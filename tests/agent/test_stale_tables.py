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


def test_cause_when_it_is_known_from_before_the_stream_then_does_not_count() -> None:
    """A dump that had failed and goes on is not announced again, and brings rows of before."""
    sync = changes_pb2.TableSync(table=TableName(database="shop", table="orders"), unlogged_gsn=150)
    stale = StaleTables([sync])
    assert stale.waits(ORDERS) and not stale.is_told(ORDERS)
