"""What a gateway asks of the database and records in it, beside entries of the cut log."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import event as sql_event
from sqlalchemy import select, update

from controlplane_api.database import LOOKUP_ROWS, Database, open_database
from controlplane_api.models import (
    Agent,
    Gateway,
    Source,
    SourceHealth,
    SourceTable,
)
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables
from gateway.registry import (
    Assignment,
    GatewayReplaced,
    GatewayRun,
    LandingOther,
    Logged,
    PresentElsewhere,
    Problem,
    Registry,
    RegistryUnavailable,
    SourceCommitted,
    SourceKey,
    SourceOwned,
    TableDesired,
    TableEffective,
)
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, fence, file, started, stopped
from tests.controlplane_api.syncing import NOW, OLDEST, start, stop, sync_of


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
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    start(database, "orders")
    codes = [outcome.refused and outcome.refused.code for outcome in start(database, "orders", "secrets", "x", how=NOW)]
    assert codes == ["SYNC_RUNNING", "TABLE_DENIED", "TABLE_UNKNOWN"]
    assert registry.generations([KEY]) == {KEY: 1}


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
        facts.record_heartbeat(registry, "acme", "agent-1", 2**64 - 1, 5, [beat], T0 + number * 2_000_000)
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


def test_generations_when_more_sources_are_followed_than_a_statement_has_parameters_for_then_all_are_told(
    registry: SqlRegistry, database: Database
):
    facts.record_shop(registry, "orders")
    start(database, "orders")
    others = [SourceKey("acme", f"source-{number}") for number in range(33_000)]
    assert registry.generations([*others, KEY]) == {KEY: 1}
    assert registry.dump_generations([*others, KEY]) == {KEY: 0}


def test_source_when_gateways_race_then_one_owns_it_and_epochs_never_fall(database_url: str, database: Database):
    registries = [SqlRegistry(open_database(database_url)) for _ in range(4)]
    barrier = threading.Barrier(len(registries))
    won: list[tuple[int, Assignment]] = []
    lost: list[int] = []

    def race(number: int) -> None:
        gateway = GatewayRun(f"gw-{number}", "run")
        registries[number].begin_gateway(gateway, 3600)
        for turn in range(8):
            key = SourceKey("acme", f"source-{turn}")
            barrier.wait(300)
            try:
                won.append((turn, registries[number].assign_source(key, gateway, f"session-{number}")))
            except SourceOwned:
                lost.append(turn)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(registries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for registry in registries:
        registry._database.close()
    assert sorted(won, key=lambda each: each[0]) == [(turn, Assignment(1, needs_fence=False)) for turn in range(8)]
    assert len(lost) == 24


def test_source_when_its_owner_changes_then_a_fence_is_missing_until_the_log_shows_the_new_one(
    registry: SqlRegistry, database: Database
):
    first, second = GatewayRun("gw-1", "run-1"), GatewayRun("gw-2", "run-2")
    registry.begin_gateway(first, 3600)
    registry.begin_gateway(second, 3600)
    assert registry.assign_source(KEY, first, "agent") == Assignment(1, needs_fence=False)
    registry.release_source(KEY, first, 1)
    assert registry.assign_source(KEY, first, "agent") == Assignment(2, needs_fence=False)  # nobody came between
    with pytest.raises(SourceOwned, match="gateway gw-1 owns source acme/shop, epoch 2, and lives until 20"):
        registry.assign_source(KEY, second, "another agent")
    assert registry.assign_source(KEY, second, "agent") == Assignment(3, needs_fence=True)  # it came here itself
    registry.release_source(KEY, first, 2)  # not its own any more
    assert registry.renew_gateway(first, 3600) == {}
    assert registry.renew_gateway(second, 0) == {KEY: 3}  # over at once
    assert registry.assign_source(KEY, second, "agent") == Assignment(4, needs_fence=True)
    registry.apply_entry(LANDING, entry(1, fences=[fence(4)]))
    assert registry.assign_source(KEY, second, "agent") == Assignment(5, needs_fence=False)
    assert registry.assign_source(KEY, first, "another agent") == Assignment(6, needs_fence=True)
    registry.end_gateway(first)
    again = GatewayRun("gw-1", "after a restart")
    registry.begin_gateway(again, 3600)
    assert registry.assign_source(KEY, again, "another agent") == Assignment(7, needs_fence=True)
    with pytest.raises(GatewayReplaced):
        registry.renew_gateway(first, 3600)


def test_source_when_its_owners_lease_is_over_then_it_is_free_whoever_else_lives(registry: SqlRegistry):
    dead, living, third = (GatewayRun(f"gw-{number}", "run") for number in (1, 2, 3))
    for gateway in (dead, living, third):
        registry.begin_gateway(gateway, 3600)
    other = SourceKey("acme", "another")
    registry.assign_source(KEY, dead, "agent")
    registry.assign_source(other, living, "another agent")
    registry.renew_gateway(dead, 0)  # over at once
    assert registry.assign_source(KEY, third, "anew") == Assignment(2, needs_fence=True)
    with pytest.raises(SourceOwned, match="gateway gw-2 owns source acme/another"):
        registry.assign_source(other, third, "anew")


def test_source_when_the_clock_goes_back_then_its_dead_owner_keeps_it_no_longer_for_that(
    registry: SqlRegistry, database: Database
):
    dead, living, third = (GatewayRun(f"gw-{number}", "run") for number in (1, 2, 3))
    for gateway in (dead, living, third):
        registry.begin_gateway(gateway, 15)
    other = SourceKey("acme", "another")
    registry.assign_source(KEY, dead, "agent")
    registry.assign_source(other, living, "another agent")
    with database.write() as connection:  # as if all had been written before the clock went back an hour
        connection.execute(update(Gateway).values(expires_at_us=Gateway.expires_at_us + 3_600_000_000))
    assert registry.renew_gateway(living, 3600) == {other: 1}
    assert registry.assign_source(KEY, third, "anew") == Assignment(2, needs_fence=True)
    with pytest.raises(SourceOwned, match="gateway gw-2 owns source acme/another"):
        registry.assign_source(other, third, "anew")


def test_agent_when_its_sessions_come_to_several_gateways_then_it_is_at_one_and_no_late_end_counts(
    registry: SqlRegistry,
):
    first, second = GatewayRun("gw-1", "run-1"), GatewayRun("gw-2", "run-2")
    name, other = ("acme", "db-1"), ("acme", "db-2")
    registry.begin_gateway(first, 3600)
    registry.begin_gateway(second, 3600)
    assert registry.take_presence(name, first, "session") == 1
    assert registry.take_presence(other, second, "session") == 1
    held = registry.take_presence(name, second, "a copy's")
    assert isinstance(held, PresentElsewhere)
    assert (held.gateway, held.run) == ("gw-1", "run-1")
    registry.renew_gateway(first, 3600)
    again = registry.take_presence(name, second, "a copy's")
    assert isinstance(again, PresentElsewhere)
    assert again.expires_at_us > held.expires_at_us
    assert registry.take_presence(name, second, "session") == 2  # the agent went there itself
    assert not registry.release_presence(name, first, 1)
    assert registry.take_presence(name, second, "anew") == 3  # which of its own sessions counts a gateway knows
    assert not registry.release_presence(name, second, 2)
    assert (registry.presences(first), registry.presences(second)) == ({}, {name: 3, other: 1})
    assert registry.release_presence(name, second, 3)
    assert not registry.release_presence(name, second, 3)
    assert registry.take_presence(name, first, "another") == 4
    registry.renew_gateway(first, 0)  # over at once
    assert registry.take_presence(name, second, "yet another") == 5
    assert isinstance(registry.take_presence(other, first, "a copy's"), PresentElsewhere)
    registry.end_gateway(second)
    assert registry.take_presence(other, first, "a copy's") == 2


def test_source_when_the_log_shows_a_higher_epoch_then_the_next_is_above_it_and_needs_a_fence(registry: SqlRegistry):
    registry.apply_entry(LANDING, entry(1, cut(1, epoch=7)))
    assert registry.assign_source(KEY, GatewayRun("gw-1", "run"), "agent") == Assignment(8, needs_fence=True)


def test_cut_when_the_log_has_a_fence_of_a_later_owner_before_it_then_it_does_not_count(
    registry: SqlRegistry, database: Database
):
    """No gateway writes it; a log that was put together by hand may have it."""
    facts.record_shop(registry)
    start(database, "orders")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0)], epoch=2)))
    registry.apply_entry(LANDING, entry(2, fences=[fence(4)]))
    registry.apply_entry(LANDING, entry(3, cut(2, file("orders"), epoch=2)))
    found = registry.followed(LANDING, [KEY, SourceKey("acme", "unknown")])
    assert (found.applied_entry, found.sources) == (3, {KEY: Logged(4, 1, cut(1).last_gsn)})
    assert registry.committed(KEY).cut == 1
    registry.apply_entry(LANDING, entry(4, cut(2, file("orders"), epoch=4)))
    assert registry.committed(KEY).cut == 2


def test_landing_when_it_is_another_one_then_it_is_refused_by_name(registry: SqlRegistry):
    assert registry.claim_landing("/landing", "its word") == "/landing"
    assert registry.claim_landing("/mnt/landing", "its word") == "/landing"  # by another address
    with pytest.raises(LandingOther, match=r"the database follows the log of /landing \(landing its word\)$"):
        registry.claim_landing("/elsewhere", "another word")
    with pytest.raises(LandingOther, match="/landing"):
        registry.claim_landing("/landing", "another word")


def test_landings_when_a_former_version_has_followed_several_then_each_stays(registry: SqlRegistry):
    registry.apply_entry("/one", entry(1, cut(1)))
    registry.apply_entry("/two", entry(1))
    assert [registry.claim_landing(url, url) for url in ("/one", "/two", "/one")] == ["/one", "/two", "/one"]
    with pytest.raises(LandingOther, match=r"/one .*, /two "):
        registry.claim_landing("/three", "/three")


def test_registry_when_database_is_gone_then_raises_unavailable(database: Database):
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE lease")
    with pytest.raises(RegistryUnavailable, match="DATABASE_UNAVAILABLE"):
        SqlRegistry(database).assign_source(KEY, GatewayRun("gw-1", "run"), "agent")


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
        "cartography": lambda: facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, seen, T0),
        "the same cartography": lambda: facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, seen, T0),
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
    more = LOOKUP_ROWS + 1  # so that lookups of ids come in two parts
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
