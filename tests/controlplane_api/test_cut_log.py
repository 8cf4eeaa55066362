"""What entries of the cut log do to sources, tables and their syncs."""

from collections.abc import Callable

import pytest
from menura.landing import LandedAhead
from sqlalchemy import select

from controlplane_api.api.queries import table_events
from controlplane_api.database import Database, open_database
from controlplane_api.errors import EntryOutOfOrder
from controlplane_api.models import (
    POSITION_OF_SYNC,
    CommittedPosition,
    SourcePosition,
    SourceTable,
    Sync,
)
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import (
    SourceCommitted,
    SourceKey,
    TableDesired,
    TableEffective,
)
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, at, cut, entry, event, file, started, stopped
from tests.controlplane_api.syncing import NOW, start, stop, sync_of


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
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_now=True, was_synced=True),)


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
