import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from menura.landing import LandedAhead
from sqlalchemy import event as sql_event
from sqlalchemy import select

from controlplane_api.api.queries import table_events
from controlplane_api.database import LOOKUP_ROWS, Database, open_database
from controlplane_api.errors import EntryOutOfOrder
from controlplane_api.models import (
    POSITION_OF_SYNC,
    Agent,
    CommittedPosition,
    Source,
    SourceHealth,
    SourcePosition,
    SourceTable,
    Sync,
)
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, start_tables, stop_tables
from gateway.registry import (
    LeaseHeld,
    Problem,
    Registry,
    RegistryUnavailable,
    SourceCommitted,
    SourceKey,
    TableDesired,
    TableEffective,
)
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, at, cut, entry, event, file, started, stopped

OLDEST, NOW, RESUME = Start(StartKind.OLDEST), Start(StartKind.NOW), Start(StartKind.RESUME)


def start(database: Database, *tables: str, how: Start = RESUME) -> list[Outcome]:
    with database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        return start_tables(connection, source_id, [("shop", table) for table in tables], how)


def stop(database: Database, *tables: str) -> list[Outcome]:
    with database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        return stop_tables(connection, source_id, [("shop", table) for table in tables])


def sync_of(database: Database, table: str) -> dict:
    with database.read() as connection:
        statement = select(Sync, POSITION_OF_SYNC).join(SourceTable).where(SourceTable.name == table)
        return dict(connection.execute(statement).mappings().one())


def test_registry_when_built_then_is_the_gateways_protocol(registry: SqlRegistry):
    as_protocol: Registry = registry
    assert as_protocol.applied_entry(LANDING) == 0


def test_desired_when_source_is_new_then_generation_0_and_no_tables(registry: SqlRegistry):
    facts.record_shop(registry)
    assert registry.desired(KEY).generation == 0
    assert registry.desired(KEY).tables == ()
    assert registry.desired(SourceKey("acme", "unknown")).generation == 0
    assert registry.committed(KEY) == SourceCommitted()


def test_desired_when_tables_start_then_says_where_each_begins(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders", how=OLDEST)
    start(database, "items", how=NOW)
    start(database, "notes", how=Start(StartKind.POSITION, "binlog.000002:157"))
    assert registry.desired(KEY).tables == (
        TableDesired("shop", "items", start_now=True),
        TableDesired("shop", "notes", start_text="binlog.000002:157"),
        TableDesired("shop", "orders", start_oldest=True),
    )
    assert registry.generations([KEY, SourceKey("other", "shop")]) == {KEY: 3}


def test_generation_when_set_of_tables_changes_then_grows_once_per_command(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders", "items")
    assert registry.generations([KEY]) == {KEY: 1}
    assert [outcome.changed for outcome in start(database, "orders", "items")] == [False, False]
    assert registry.generations([KEY]) == {KEY: 1}
    stop(database, "items")
    assert registry.generations([KEY]) == {KEY: 2}
    stop(database, "items")
    assert registry.generations([KEY]) == {KEY: 2}
    registry.apply_entry(LANDING, entry(1, cut(1, generation=2, start=[started("orders", 0)])))
    registry.apply_entry(LANDING, entry(2, cut(2, generation=2, stop=[stopped("orders", 2)])))
    assert registry.generations([KEY]) == {KEY: 3}


def test_start_when_it_runs_elsewhere_is_denied_or_unknown_then_refused(registry: SqlRegistry, database: Database):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen("orders"), facts.table_seen("secrets", denied=True)]
    registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    start(database, "orders")
    codes = [outcome.refused and outcome.refused.code for outcome in start(database, "orders", "secrets", "x", how=NOW)]
    assert codes == ["SYNC_RUNNING", "TABLE_DENIED", "TABLE_UNKNOWN"]
    assert registry.generations([KEY]) == {KEY: 1}


def test_apply_entry_when_repeated_then_changes_nothing(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders")
    first = entry(1, cut(1, file("orders", 7), start=[started("orders", 0, "older rows are missing")]))
    for _ in range(3):
        registry.apply_entry(LANDING, first)
    sync = sync_of(database, "orders")
    assert (sync["rows"], sync["bytes"], sync["start"]) == (7, 700, None)
    assert sync["earlier_rows_missing"] == "older rows are missing"
    assert registry.applied_entry(LANDING) == 1
    assert registry.committed(KEY) == SourceCommitted(1, 1, 10, 1, at(1))
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", earlier_rows_missing=True),)


def test_apply_entry_when_one_is_skipped_then_refused(registry: SqlRegistry):
    with pytest.raises(EntryOutOfOrder, match="entry 2 came after entry 0"):
        registry.apply_entry(LANDING, entry(2, cut(1)))
    assert registry.applied_entry(LANDING) == 0
    assert registry.committed(KEY) == SourceCommitted()


def test_apply_entry_when_entry_has_cuts_of_several_sources_then_all_move(registry: SqlRegistry):
    others = [SourceKey("acme", "crm"), SourceKey("globex", "shop")]
    ahead = LandedAhead(at(9), (("shop", "items"),))
    registry.apply_entry(
        LANDING,
        entry(1, cut(1), cut(2, file("orders"), ahead=[ahead]), *(cut(5, file("orders"), key=key) for key in others)),
    )
    assert registry.committed(KEY) == SourceCommitted(1, 2, 20, 2, at(2), (ahead,))
    assert [registry.committed(key).cut for key in others] == [5, 5]


def test_apply_entry_when_replayed_from_scratch_then_gives_the_same_state(
    registry: SqlRegistry, database: Database, database_url: str, fresh_url: Callable[[], str]
):
    facts.record_shop(registry)
    start(database, "orders", "items", "notes")
    begin = [started("orders", 0), started("items", 0, "rows before 0"), started("notes", 0)]
    entries = [
        entry(1, cut(1, file("orders"), file("items"), start=begin)),
        entry(2, cut(2, file("orders", 3)), cut(3, file("notes", 4), stop=[stopped("notes", 3)])),
    ]
    for each in entries:
        registry.apply_entry(LANDING, each)
    stop(database, "items")
    start(database, "items", "notes")
    entries.append(entry(3, cut(4, file("items", 5), generation=4, start=[started("items", 3), started("notes", 3)])))
    registry.apply_entry(LANDING, entries[-1])
    rebuilt = open_database(fresh_url())
    for each in entries:
        SqlRegistry(rebuilt).apply_entry(LANDING, each)

    def of_the_log(of: Database) -> list:
        columns = [Sync.rows, Sync.bytes, POSITION_OF_SYNC, Sync.earlier_rows_missing, Sync.failed]
        with of.read() as connection:
            syncs = select(SourceTable.name, *columns).join_from(Sync, SourceTable).order_by(SourceTable.name)
            committed = select(
                *(column for column in CommittedPosition.__table__.columns if column.name != "source_id")
            )
            return [*connection.execute(syncs).all(), *connection.execute(committed).all()]

    assert of_the_log(rebuilt) == of_the_log(database)
    assert SqlRegistry(rebuilt).generations([KEY]) == {KEY: 4}
    assert SqlRegistry(rebuilt).desired(KEY).tables == ()  # started again by command, where each stopped
    with rebuilt.read() as connection:
        assert {problem["code"] for (problem,) in connection.execute(select(Sync.problem))} == {"DESIRED_STATE_LOST"}
    assert "menura sync start shop --lost" in SqlRegistry(rebuilt).desired(KEY).notice
    assert registry.desired(KEY).notice == ""
    rebuilt.close()


def test_event_when_its_entry_is_applied_then_the_table_is_past_it(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0)])))
    registry.apply_entry(LANDING, entry(2, cut(2, events=[event("orders", 12)])))
    sync = sync_of(database, "orders")
    assert (sync["position"]["token"], sync["rows"]) == ("200", 10)


def test_events_when_there_are_many_then_the_last_hundred_of_each_table_stay(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    for number in (1, 2):
        first = number * 1_000
        events = [event("orders", first + n, "ALTERED") for n in range(70)] + [event("items", first + 80)]
        registry.apply_entry(LANDING, entry(number, cut(number, events=events)))
    registry.apply_entry(LANDING, entry(3, cut(3, events=[event("notes", 3_000 + n) for n in range(150)])))
    with database.read() as connection:
        ids = {row.name: row.id for row in connection.execute(select(SourceTable.name, SourceTable.id))}
        found = {name: [each.gsn for each in table_events(connection, id_)] for name, id_ in ids.items()}
    assert found["orders"] == [*range(2_069, 1_999, -1), *range(1_069, 1_039, -1)]
    assert found["items"] == [2_080, 1_080]
    assert found["notes"] == list(range(3_149, 3_049, -1))


def test_position_when_many_tables_are_there_then_it_is_stored_once_and_goes_with_the_last_of_them(
    registry: SqlRegistry, database: Database
):
    def stored() -> list[str]:
        with database.read() as connection:
            return sorted(row.position["token"] for row in connection.execute(select(SourcePosition)))

    names = [f"table_{number}" for number in range(300)]
    facts.record_shop(registry, *names)
    start(database, *names)
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started(name, 0) for name in names])))
    assert stored() == ["0"]
    registry.apply_entry(LANDING, entry(2, cut(2, events=[event(name, 11 + n) for n, name in enumerate(names)])))
    assert stored() == ["200"]
    registry.apply_entry(LANDING, entry(3, cut(3, file(names[0]))))
    assert stored() == ["200", "300"]
    stop(database, *names)
    assert stored() == ["300"]
    assert {sync_of(database, name)["position"]["token"] for name in names[:2]} == {"300"}


def test_resume_when_stopped_then_begins_where_its_last_landed_rows_end(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0, "rows before 0")])))
    registry.apply_entry(LANDING, entry(2, cut(2)))
    stop(database, "orders")
    assert sync_of(database, "orders")["position"]["token"] == "200"
    # A cut of the older generation was already in the log when the stop came.
    registry.apply_entry(LANDING, entry(3, cut(3, file("orders"))))
    registry.apply_entry(LANDING, entry(4, cut(4, generation=2)))
    start(database, "orders")
    assert registry.desired(KEY).tables == (
        TableDesired("shop", "orders", start_position=at(3), earlier_rows_missing=True),
    )
    registry.apply_entry(LANDING, entry(5, cut(5, generation=3, start=[started("orders", 3, "rows before 3")])))
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", earlier_rows_missing=True),)
    assert sync_of(database, "orders")["earlier_rows_missing"] == "rows before 0"


def test_stop_when_table_is_ahead_then_keeps_its_own_position(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders", "items")
    ahead = LandedAhead(at(9), (("shop", "orders"),))
    begin = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("items"), start=begin, ahead=[ahead])))
    stop(database, "orders", "items")
    assert sync_of(database, "orders")["position"]["token"] == "900"
    assert sync_of(database, "items")["position"]["token"] == "100"


def test_stop_when_sync_never_began_then_has_no_position_and_resumes_at_the_oldest(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    registry.apply_entry(LANDING, entry(1, cut(1)))
    start(database, "orders", how=NOW)
    stop(database, "orders")
    assert sync_of(database, "orders")["position"] is None
    start(database, "orders")
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_oldest=True),)


def test_start_when_an_older_lifes_start_is_logged_late_then_still_asks_for_the_new_one(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    start(database, "orders")
    stop(database, "orders")
    start(database, "orders", how=NOW)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), generation=1, start=[started("orders", 0)])))
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_now=True),)


def test_failed_table_when_the_log_stops_it_then_keeps_position_and_problem_until_started_again(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    start(database, "orders", "items")
    begin = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=begin)))
    registry.apply_entry(LANDING, entry(2, cut(2, file("orders"), stop=[stopped("orders", 2)])))
    registry.apply_entry(LANDING, entry(3, cut(3)))
    sync = sync_of(database, "orders")
    assert (sync["state"], sync["position"]["token"], sync["problem"]["code"]) == ("failed", "200", "EVENT_UNKNOWN")
    assert registry.desired(KEY).tables == (TableDesired("shop", "items"),)
    streaming = TableEffective("shop", "orders", "STREAMING")
    registry.record_effective(KEY, registry.desired(KEY).generation, [streaming], None, T0)
    assert sync_of(database, "orders")["state"] == "failed"
    start(database, "orders")
    assert registry.desired(KEY).tables[1] == TableDesired("shop", "orders", start_position=at(2))
    assert sync_of(database, "orders")["problem"] is None


def test_failure_when_logged_after_the_user_stopped_then_only_moves_the_position(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    start(database, "orders")
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
    stop(database, "orders")
    registry.apply_entry(LANDING, entry(2, cut(2, generation=1, stop=[stopped("orders", 2)])))
    sync = sync_of(database, "orders")
    assert (sync["state"], sync["position"]["token"]) == ("stopped", "200")
    assert registry.generations([KEY]) == {KEY: 2}


def test_record_effective_when_generation_is_old_then_ignored(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    start(database, "orders", "items")
    problem = Problem("COLUMN_UNSUPPORTED", "A column that can't be read.", terminal=True, at_us=T0)
    tables = [
        TableEffective("shop", "orders", "STREAMING", None, ("note",)),
        TableEffective("shop", "items", "FAILED", problem),
        TableEffective("shop", "never asked for", "STREAMING"),
    ]
    registry.record_effective(KEY, 0, tables, problem, T0)
    assert sync_of(database, "orders")["state"] == "pending"
    registry.record_effective(KEY, 1, tables, None, T0)
    assert sync_of(database, "orders")["state"] == "streaming"
    assert sync_of(database, "orders")["ignored_columns"] == ["note"]
    assert sync_of(database, "items")["problem"]["code"] == "COLUMN_UNSUPPORTED"


def test_record_cartography_when_a_table_is_gone_then_marked_and_its_sync_kept(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry, "orders", "items")
    start(database, "items")
    facts.record_shop(registry, "orders", "added")
    with database.read() as connection:
        rows = dict(connection.execute(select(SourceTable.name, SourceTable.gone)).all())
    assert rows == {"orders": False, "items": True, "added": False}
    assert registry.desired(KEY).tables == (TableDesired("shop", "items", start_oldest=True),)
    facts.record_shop(registry, "orders", "items")
    with database.read() as connection:
        assert dict(connection.execute(select(SourceTable.name, SourceTable.gone)).all())["items"] is False


def test_record_agent_gone_when_a_newer_session_is_known_then_ignored(registry: SqlRegistry, database: Database):
    def connected() -> bool:
        with database.read() as connection:
            return connection.execute(select(Agent.connected)).scalar_one()

    registry.record_agent(facts.agent_seen(session="run-1"))
    registry.record_agent(facts.agent_seen(session="run-2"))
    registry.record_agent_gone("acme", "agent-1", "run-1", T0)
    assert connected()
    registry.record_agent_gone("acme", "agent-1", "run-2", T0)
    assert not connected()


def test_record_heartbeat_when_counters_grow_then_rates_are_per_second(registry: SqlRegistry, database: Database):
    facts.record_shop(registry)
    beats = [facts.health(rows=1_000), facts.health(rows=3_000, lag_us=None), facts.health(rows=5)]
    rates = []
    for number, beat in enumerate(beats):
        registry.record_heartbeat("acme", "agent-1", 2**64 - 1, 5, [beat], T0 + number * 2_000_000)
        with database.read() as connection:
            row = connection.execute(select(SourceHealth.rows_per_second, SourceHealth.lag_us)).one()
        rates.append(tuple(row))
    assert rates == [(None, 0), (1000.0, None), (None, 0)]


def test_registry_when_two_tenants_have_a_source_of_one_name_then_they_stay_apart(
    registry: SqlRegistry, database: Database
):
    other = SourceKey("globex", "shop")
    facts.record_shop(registry, "orders")
    start(database, "orders")
    facts.record_shop(registry, "orders", key=other)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0)])))
    assert registry.desired(other).tables == ()
    assert registry.committed(other) == SourceCommitted()
    assert registry.generations([KEY, other]) == {KEY: 1, other: 0}


def test_lease_when_gateways_race_then_one_wins_and_epochs_never_fall(database_url: str, database: Database):
    registries = [SqlRegistry(open_database(database_url)) for _ in range(4)]
    barrier = threading.Barrier(len(registries))
    won: list[tuple[int, int]] = []
    lost: list[int] = []

    def race(number: int) -> None:
        for turn in range(8):
            key = SourceKey("acme", f"source-{turn}")
            barrier.wait(300)
            try:
                won.append((turn, registries[number].acquire_lease(key, f"gw-{number}", 3600)))
            except LeaseHeld:
                lost.append(turn)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(registries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for registry in registries:
        registry._database.close()
    assert sorted(won) == [(turn, 1) for turn in range(8)]
    assert len(lost) == 24


def test_lease_when_released_expired_or_held_then_epoch_follows(registry: SqlRegistry):
    assert registry.acquire_lease(KEY, "gw-1", 3600) == 1
    assert registry.acquire_lease(KEY, "gw-1", 3600) == 1  # the holder keeps its own
    with pytest.raises(LeaseHeld, match="gw-1 holds the lease on source acme/shop, epoch 1, until 20"):
        registry.acquire_lease(KEY, "gw-2", 3600)
    registry.release_lease(KEY, "gw-1", 1)
    assert registry.acquire_lease(KEY, "gw-2", 0) == 2  # over at once
    assert registry.acquire_lease(KEY, "gw-1", 3600) == 3
    with pytest.raises(LeaseHeld):
        registry.renew_lease(KEY, "gw-2", 2, 3600)
    registry.release_lease(KEY, "gw-2", 2)  # not its own any more
    registry.renew_lease(KEY, "gw-1", 3, 3600)


def test_lease_when_the_log_shows_a_higher_epoch_then_the_next_is_above_it(registry: SqlRegistry):
    registry.apply_entry(LANDING, entry(1, cut(1, epoch=7)))
    assert registry.acquire_lease(KEY, "gw-1", 3600) == 8


def test_registry_when_database_is_gone_then_raises_unavailable(database: Database):
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE lease")
    with pytest.raises(RegistryUnavailable, match="DATABASE_UNAVAILABLE"):
        SqlRegistry(database).acquire_lease(KEY, "gw-1", 3600)


class Statements:
    """What the database was asked, as SQL and how often."""

    def __init__(self, database: Database) -> None:
        self.asked: list[tuple[str, Any]] = []
        sql_event.listen(database.engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, sql: str, values: Any, _context: object, many: bool) -> None:
        self.asked.append((sql, values[0] if many else values))

    def of(self, call: Callable[[], object]) -> list[tuple[str, Any]]:
        self.asked.clear()
        call()
        return list(self.asked)


def calls_about(
    registry: SqlRegistry, database: Database, tables: int, entries: Sequence[int]
) -> dict[str, Callable[[], object]]:
    """What a gateway and a user ask when the source has so many tables, in the order of a source's life."""
    names = [f"table_{number}" for number in range(tables)]
    seen = [facts.table_seen(name) for name in names]
    effective = [TableEffective("shop", name, "STREAMING") for name in names]

    def start_all() -> None:
        with database.write() as connection:
            start_tables(connection, connection.execute(select(Source.id)).scalar_one(), None, OLDEST)

    def apply(at: int, **about: Any) -> None:
        files = [file(name) for name in about.pop("files", ())]
        registry.apply_entry(LANDING, entry(entries[at], cut(entries[at], *files, **about)))

    return {
        "cartography": lambda: registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, seen, T0),
        "the same cartography": lambda: registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, seen, T0),
        "start all": start_all,
        "effective": lambda: registry.record_effective(KEY, 1, effective, None, T0),
        "the same effective": lambda: registry.record_effective(KEY, 1, effective, None, T0),
        "desired": lambda: registry.desired(KEY),
        "entry that starts all": lambda: apply(0, start=[started(name, 0) for name in names]),
        "entry of all": lambda: apply(1, files=names),
        "entry of one": lambda: apply(2, files=names[:1]),
    }


def test_registry_when_source_has_thousands_of_tables_then_calls_take_no_more_statements(
    registry: SqlRegistry, database: Database
):
    registry.record_agent(facts.agent_seen())
    statements = Statements(database)
    few = {name: len(statements.of(call)) for name, call in calls_about(registry, database, 10, (1, 2, 3)).items()}
    more = LOOKUP_ROWS + 1  # so that lookups come in two parts
    many = {name: len(statements.of(call)) for name, call in calls_about(registry, database, more, (4, 5, 6)).items()}
    assert len(registry.desired(KEY).tables) == more
    assert many["entry of one"] == few["entry of one"]
    assert all(many[name] <= 2 * few[name] + 2 for name in few), (few, many)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_entry_when_it_is_of_one_table_then_no_statement_looks_through_all_of_them(
    registry: SqlRegistry, database: Database
):
    registry.record_agent(facts.agent_seen())
    calls = calls_about(registry, database, 100, (1, 2, 3))
    asked: list[tuple[str, Any]] = []
    for call in calls.values():
        asked = Statements(database).of(call)
    assert len(asked) > 5
    with database.read() as connection:
        for sql, values in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
            assert not [step for *_, step in plan if re.match(r"SCAN (source_table|sync|table_event)\b", step)], sql
