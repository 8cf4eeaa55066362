"""Tables that a lake has stopped and that a dump brings back: what is noted and ordered; on SQLite and PostgreSQL."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from menura.lake_report import LakeStop
from menura.landing import LandedEvent

from controlplane_api import rereads
from controlplane_api.api.views import UnloggedView
from controlplane_api.database import Database, open_database
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import stop_tables
from tests.controlplane_api import facts
from tests.controlplane_api.dump_facts import BROKEN, Log, begin, command
from tests.controlplane_api.facts import KEY, LANDING, T0, dump_event, started, unlogged
from tests.controlplane_api.lake_facts import Sink, table_of
from tests.controlplane_api.lake_facts import stop as lake_stop
from tests.controlplane_api.reread_facts import WHOLE_KEY, done, dumped, note, ordered, running_dump, streaming, sync_of


@pytest.fixture
def log(registry: SqlRegistry, database: Database) -> Log:
    return streaming(registry, database)


def keys_told(most: int = 3, gsn: int = 2) -> LandedEvent:
    """The agent's policy comes with a table's keys."""
    told = facts.event("orders", gsn, "FOREIGN_KEYS")
    return replace(told, reread=most > 0, most_rereads_per_hour=most)


def uncertain(cut: int = 2, gsn: int = 0, at_us: int = T0) -> LakeStop:
    return lake_stop("orders", cut, "CASCADE_UNCERTAIN", reread=True, gsn=gsn, at_us=at_us, message="What a key did.")


def test_a_lake_when_it_has_stopped_a_table_that_a_dump_heals_gets_it_once(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    sinks = Sink(), Sink("second", run="f" * 32)
    for sink in sinks:  # both have stopped it
        sink.tell(database, 0, stopped=(uncertain(),))
    said = note(database)
    assert said is not None
    assert [cause["why"] for cause in said["causes"]] == ["a lake stopped it: What a key did."]
    assert UnloggedView.model_validate(said).causes[0].of_lake, "as REST shows it"
    (uuid,) = ordered(registry)
    sinks[0].tell(database, stopped=(uncertain(),))  # it says so again
    sinks[0].tell(database, 0, stopped=(uncertain(),))
    assert ordered(registry) == [uuid]
    dumped(log, uuid, 1000)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_lakes_stop_when_a_dump_that_heals_it_is_there_already_orders_none(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    mine = running_dump(log, database)
    Sink().tell(database, 0, stopped=(uncertain(gsn=19),))
    assert ordered(registry) == [mine], "one at a time"
    done(log, mine, 30)
    assert (note(database), ordered(registry)) == (None, [])
    Sink("second", run="f" * 32).tell(database, 0, stopped=(uncertain(gsn=18),))
    assert (note(database), ordered(registry)) == (None, [])


def test_a_lakes_stop_when_all_rows_are_removed_before_a_dump_heals_it_still_gets_one(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    mine = running_dump(log, database)
    log.cut(unlogged("orders", 30, "goes with the rows"))
    Sink().tell(database, 0, stopped=(uncertain(gsn=40),))
    log.cut(facts.event("orders", 50, "TRUNCATED"))
    said = note(database)
    assert said is not None
    assert [cause["why"] for cause in said["causes"]] == ["a lake stopped it: What a key did."]
    done(log, mine, 60)
    (another,) = ordered(registry)
    assert another != mine
    dumped(log, another, 1000)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_lakes_stop_when_it_comes_after_a_running_dumps_start_gets_one_more(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    mine = running_dump(log, database)
    Sink().tell(database, 0, stopped=(uncertain(gsn=19),))
    Sink("second", run="f" * 32).tell(database, 0, stopped=(uncertain(gsn=20),))
    assert note(database) is not None
    assert ordered(registry) == [mine], "one at a time"
    done(log, mine, 30)
    (another,) = ordered(registry)
    dumped(log, another, 40)
    assert (note(database), ordered(registry)) == (None, [])


def fail(_database: Database, registry: SqlRegistry, uuid: str) -> None:
    registry.record_dump_failed(KEY, uuid, BROKEN, T0 + 3_000_000)


def cancel(database: Database, _registry: SqlRegistry, uuid: str) -> None:
    command(database, rereads.cancel, uuid)


@pytest.mark.parametrize("end", [fail, cancel])
def test_a_lakes_stop_when_the_dump_that_would_heal_it_ends_before_gets_another(
    log: Log, registry: SqlRegistry, database: Database, end: Callable[[Database, SqlRegistry, str], None]
) -> None:
    log.cut(keys_told())
    mine = running_dump(log, database)
    sink = Sink()
    sink.tell(database, 0, stopped=(uncertain(gsn=19),))
    sink.tell(database, resumed=(table_of("orders"),))  # it has emptied the table
    end(database, registry, mine)
    (another,) = ordered(registry)
    assert another != mine
    dumped(log, another, 40)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_lakes_stop_when_its_dump_was_cancelled_and_it_is_said_again_gets_no_other(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    sink = Sink()
    sink.tell(database, 0, stopped=(uncertain(gsn=19),))
    (uuid,) = ordered(registry)
    cancel(database, registry, uuid)
    sink.tell(database, 0, stopped=(uncertain(gsn=19, at_us=T0 + 9),))  # it has begun again, and tried the table
    assert ordered(registry) == []
    said = note(database)
    assert said is not None and not said["reread"]


def test_a_lakes_stop_when_no_dump_may_be_ordered_for_it_stays(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    sink = Sink()
    sink.tell(database, 0, stopped=(lake_stop("orders"),))  # which a person has to look at
    assert (note(database), ordered(registry)) == (None, [])
    log.cut(keys_told(0, gsn=12))
    sink.tell(database, stopped=(uncertain(at_us=T0 + 9),))
    assert (note(database), ordered(registry)) == (None, [])


def test_a_lakes_stops_when_dumps_do_not_end_them_stop_the_table_at_the_bound(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told(2))
    sink = Sink()
    for number in range(2):
        sink.tell(database, 0, stopped=(uncertain(at_us=T0 + number),), at_us=T0 + number)
        (uuid,) = ordered(registry)
        dumped(log, uuid, 10 * len(log.entries) + 5)
    sink.tell(database, 0, stopped=(uncertain(at_us=T0 + 9),), at_us=T0 + 9)
    assert sync_of(database)["problem"]["code"] == "REREAD_LIMIT"
    assert ordered(registry) == []


def resume(log: Log, database: Database) -> None:
    begin(database, "orders", kind=StartKind.RESUME)
    log.cut(start=[started("orders", 4)], generation=log.registry.desired(KEY).generation)


def heal(log: Log, database: Database, sink: Sink) -> None:
    """One dump is ordered for the stop, and none after it, whatever is told again meanwhile."""
    (uuid,) = ordered(log.registry)
    sink.tell(database, stopped=(uncertain(),))
    log.cut(keys_told(gsn=90))
    assert ordered(log.registry) == [uuid]
    dumped(log, uuid, 1000)
    log.cut(keys_told(gsn=1010))
    command(database, stop_tables, [("shop", "orders")])
    resume(log, database)
    sink.tell(database, 0, stopped=(uncertain(),))  # it has not seen the dump yet
    assert (note(database), ordered(log.registry)) == (None, [])


def stop_by_command(_log: Log, database: Database) -> None:
    command(database, stop_tables, [("shop", "orders")])


def stop_by_failure(log: Log, _database: Database) -> None:
    log.cut(stop=[facts.stopped("orders", 3)], generation=log.registry.desired(KEY).generation)


@pytest.mark.parametrize("stop", [stop_by_command, stop_by_failure])
def test_a_lakes_stop_when_the_sync_did_not_run_gets_its_dump_once_the_sync_has_begun(
    log: Log, registry: SqlRegistry, database: Database, stop: Callable[[Log, Database], None]
) -> None:
    log.cut(keys_told())
    stop(log, database)
    sink = Sink()
    sink.tell(database, 0, stopped=(uncertain(),))
    sink.tell(database)
    assert (note(database), ordered(registry)) == (None, [])
    resume(log, database)
    heal(log, database, sink)


def test_a_lakes_stop_when_the_policy_comes_later_gets_its_dump_then(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    sink = Sink()
    sink.tell(database, 0, stopped=(uncertain(),))
    log.cut(keys_told(0))
    assert (note(database), ordered(registry)) == (None, [])
    log.cut(keys_told(3, gsn=12))
    heal(log, database, sink)


def test_two_lakes_stops_when_the_policy_comes_later_share_a_dump(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    sinks = Sink(), Sink("second", run="f" * 32)
    for sink, gsn in zip(sinks, (9, 5), strict=True):
        sink.tell(database, 0, stopped=(uncertain(gsn=gsn),))
    log.cut(keys_told())
    said = note(database)
    assert said is not None
    assert len(said["causes"]) == 1
    heal(log, database, sinks[0])


def test_a_lakes_stop_when_the_control_database_is_new_gets_its_dump_once_the_sync_is_started(
    log: Log, fresh_url: Callable[[], str]
) -> None:
    log.cut(keys_told())
    fresh = open_database(fresh_url())
    try:
        sink = Sink()
        sink.tell(fresh, 0, stopped=(uncertain(),))  # before the log is replayed
        other = Log(SqlRegistry(fresh))
        for entry in log.entries:
            other.registry.apply_entry(LANDING, entry)
            other.entries.append(entry)
        assert ordered(other.registry) == []
        resume(other, fresh)
        heal(other, fresh, sink)
    finally:
        fresh.close()


def test_a_lakes_stop_when_its_table_is_started_with_a_dump_gets_no_other(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(keys_told())
    command(database, stop_tables, [("shop", "orders")])
    Sink().tell(database, 0, stopped=(uncertain(),))
    begin(database, "orders", kind=StartKind.DUMP)
    (mine,) = ordered(registry)
    begun = dump_event("orders", 30, "DUMP_STARTED", mine)
    registry.record_dump_plan(KEY, mine, WHOLE_KEY, T0)
    log.cut(begun, start=[started("orders", 3)], generation=registry.desired(KEY).generation)
    log.cut(facts.chunk("orders", mine, 1, "", "", last=True), dump_event("orders", 31, "DUMPED", mine, 30))
    assert (note(database), ordered(registry)) == (None, [])
