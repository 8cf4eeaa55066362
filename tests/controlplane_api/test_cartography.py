"""How what agents see on their servers is stored, beside commits of others."""

from typing import Any

import pytest
from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import SourceTable
from controlplane_api.registry import cartography
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, file

OTHER = SourceKey("other", "shop")


def names(database: Database) -> dict[str, bool]:
    """Tables of all sources, and whether they are gone."""
    with database.read() as connection:
        return {row.name: row.gone for row in connection.execute(select(SourceTable.name, SourceTable.gone))}


def test_cartography_when_it_is_large_then_others_commit_between_its_pieces(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry, "t1", "t2", "gone1", "gone2", "gone3")
    registry.record_agent(facts.agent_seen(OTHER.tenant))
    monkeypatch.setattr(cartography, "PIECE_TABLES", 2)
    seen = [facts.table_seen(f"t{number}") for number in range(1, 7)]
    with database.read() as connection:
        found = cartography.differences(connection, 1, seen)
    stored: list[int] = []

    def others_commit(_seconds: float) -> None:
        number = len(stored) + 1
        registry.apply_entry(LANDING, entry(number, cut(number, file("orders"), key=OTHER)))
        stored.append(len(names(database)))

    cartography.store(database.write, found, pause=others_commit)
    # two pieces of new tables and two of those that are gone; the other tenant's table came with its first cut
    assert stored == [8, 10, 10, 10]
    after = names(database)
    assert {name for name, gone in after.items() if gone} == {"gone1", "gone2", "gone3"}
    assert registry.committed(OTHER).cut == 4


def test_cartography_when_differences_are_told_then_other_tables_stay(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cartography, "PIECE_TABLES", 2)

    def record(tables: list[str], **told: Any) -> bool:
        seen = [facts.table_seen(name) for name in tables]
        return registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, seen, T0, **told)

    registry.record_agent(facts.agent_seen())
    assert registry.cartography_digest(KEY) == b""
    assert record(["t1", "t2", "t3", "t4"], digest=b"one")
    gone = [("shop", "t2"), ("shop", "t3"), ("shop", "t4"), ("shop", "never there")]
    assert record(["t5", "t6"], base=b"one", gone=gone, digest=b"two")
    told = {"t1": False, "t2": True, "t3": True, "t4": True, "t5": False, "t6": False}
    assert names(database) == told
    assert registry.cartography_digest(KEY) == b"two"
    assert not record(["t7"], base=b"one", digest=b"three")
    assert (names(database), registry.cartography_digest(KEY)) == (told, b"two")
    assert record(["t2"], base=b"two", digest=b"four")
    assert not names(database)["t2"]
    assert not registry.record_cartography(OTHER, "mysql", "9.7.0", facts.UUID, [], T0, base=b"four")


def test_cartography_when_a_command_has_made_one_of_its_tables_meanwhile_then_it_is_one_table(
    registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry, "t1")
    with database.read() as connection:
        found = cartography.differences(connection, 1, [facts.table_seen("t1"), facts.table_seen("t2")])
    registry.apply_entry(LANDING, entry(1, cut(1, file("t2"))))
    cartography.store(database.write, found)
    assert names(database) == {"t1": False, "t2": False}
    with database.read() as connection:
        statement = select(SourceTable.digest).where(SourceTable.name == "t2")
        assert connection.execute(statement).scalar_one()
    registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, [facts.table_seen("t2")], T0)
    assert names(database) == {"t1": True, "t2": False}
