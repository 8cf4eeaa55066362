"""How what agents see on their servers is stored, beside commits of others."""

import pytest
from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import SourceTable
from controlplane_api.registry import cartography
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import CartographyEnd, RegistryRefused, SourceKey, table_hash
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, file
from tests.gateway.sql_registry import want

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
        changed = cartography.changed(connection, 1, seen)
        gone = cartography.ids_but(connection, 1, {table_hash(table.database, table.table) for table in seen})
    stored: list[int] = []

    def others_commit(_seconds: float) -> None:
        number = len(stored) + 1
        registry.apply_entry(LANDING, entry(number, cut(number, file("orders"), key=OTHER)))
        stored.append(len(names(database)))

    cartography.store(database.write, changed, pause=others_commit)
    cartography.mark_gone(database.write, gone, pause=others_commit)
    # two pieces of new tables and two of those that are gone; the other tenant's table came with its first cut
    assert stored == [8, 10, 10, 10]
    after = names(database)
    assert {name for name, gone in after.items() if gone} == {"gone1", "gone2", "gone3"}
    assert registry.committed(OTHER).cut == 4


def test_cartography_when_differences_are_told_then_other_tables_stay(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cartography, "PIECE_TABLES", 2)

    def tell(base: bytes, tables: list[str], gone: list[str], digest: bytes) -> bool:
        if not registry.begin_cartography(KEY, base):
            return False
        named = [("shop", name) for name in gone]
        registry.record_tables(KEY, [facts.table_seen(name) for name in tables], named)
        registry.end_cartography(KEY, CartographyEnd("mysql", "9.7.0", facts.UUID, digest, None), T0)
        return True

    facts.record_shop(registry, "t1", "t2", "t3", "t4")
    known = registry.cartography_digest(KEY)
    assert known
    assert tell(known, ["t5", "t6"], ["t2", "t3", "t4", "never there"], b"two")
    told = {"t1": False, "t2": True, "t3": True, "t4": True, "t5": False, "t6": False}
    assert names(database) == told
    assert not tell(known, ["t7"], [], b"three")
    assert (names(database), registry.cartography_digest(KEY)) == (told, b"two")
    assert tell(b"two", ["t2"], [], b"four")
    assert not names(database)["t2"]
    assert not registry.begin_cartography(SourceKey("acme", "nobody's"), b"")


def test_cartography_when_it_breaks_off_then_its_tables_stay_and_none_counts_as_whole(
    registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry, "t1", "t2")
    assert registry.begin_cartography(KEY, b"")
    registry.record_tables(KEY, [facts.table_seen("t3")], ())
    assert names(database) == {"t1": False, "t2": False, "t3": False}
    assert registry.cartography_digest(KEY) == b""
    facts.record_shop(registry, "t2", "t3")
    assert names(database) == {"t1": True, "t2": False, "t3": False}
    assert registry.cartography_digest(KEY)


def test_cartography_when_a_command_has_made_one_of_its_tables_meanwhile_then_it_is_one_table(
    registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry, "t1")
    with database.read() as connection:
        changed = cartography.changed(connection, 1, [facts.table_seen("t1"), facts.table_seen("t2")])
    registry.apply_entry(LANDING, entry(1, cut(1, file("t2"))))
    cartography.store(database.write, changed)
    assert names(database) == {"t1": False, "t2": False}
    with database.read() as connection:
        statement = select(SourceTable.digest).where(SourceTable.name == "t2")
        assert connection.execute(statement).scalar_one()
    facts.record_shop(registry, "t2")
    assert names(database) == {"t1": True, "t2": False}


def test_tables_when_they_come_and_go_then_those_that_something_names_stay_and_of_the_others_the_newest(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table that had ever been seen stayed: a server with a new table an hour had 8,760 of them a year."""
    monkeypatch.setattr(cartography, "KEPT_GONE", 3)
    facts.record_shop(registry, "orders", "temporary0")
    want(database, KEY, "temporary0")
    for number in range(1, 9):
        facts.record_shop(registry, "orders", f"temporary{number}")
    kept = {"temporary0": True, **{f"temporary{number}": True for number in (5, 6, 7)}, "temporary8": False}
    assert names(database) == {"orders": False, **kept}


def test_cartography_when_a_source_has_too_many_tables_then_it_is_refused_and_they_stay(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry, "t1", "t2")
    monkeypatch.setattr(cartography, "MAX_KEPT", 2)
    with pytest.raises(RegistryRefused, match="2 tables are recorded of it, and no more may be"):
        registry.begin_cartography(KEY, b"")
    assert names(database) == {"t1": False, "t2": False}


def test_cartography_when_others_began_and_never_ended_then_their_tables_go_before_there_are_too_many(
    registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed as tables that are there: up to the bound above which no cartography was taken for ever."""
    for name, most in (("MAX_THERE", 5), ("KEPT_GONE", 2)):
        monkeypatch.setattr(cartography, name, most)
    want(database, KEY, "wanted")
    facts.record_shop(registry, "orders", "t1", "wanted")

    def begin_and_tell(*tables: str) -> None:
        assert registry.begin_cartography(KEY, b"")
        registry.record_tables(KEY, [facts.table_seen(name) for name in tables], ())

    begin_and_tell("t2", "t3")
    begin_and_tell("t2", "t3")  # what a stream that broke has told is there when it comes again
    assert names(database) == dict.fromkeys(("orders", "t1", "t2", "t3", "wanted"), False)
    for number in range(8):
        begin_and_tell(*(f"made_up_{number}_{table}" for table in range(4)))
        assert len(names(database)) <= 5 + 4 + 2 + 1
    assert not any(names(database)[name] for name in ("orders", "t1", "wanted"))
    facts.record_shop(registry, "orders", "t1", "t2")
    assert {name for name, gone in names(database).items() if not gone} == {"orders", "t1", "t2"}
