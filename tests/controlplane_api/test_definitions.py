"""How definitions of tables have changed, as log and looks tell it; what is kept, and what is told of the rest."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from menura.landing import LandedColumn, LandedEvent
from sqlalchemy import func, select

from controlplane_api.database import Database
from controlplane_api.models import TableDefinition
from controlplane_api.registry import definitions
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import CartographyEnd, ColumnSeen, ForeignKeySeen
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, UUID, cut, entry
from tests.stack import http_client

PATH = "/api/v1/tenants/acme/sources/shop/tables/shop/{}/definitions"


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


def altered(table: str, gsn: int, *types: str) -> LandedEvent:
    """The first column is the key."""
    columns = [LandedColumn(f"c{place}", kind, "l", key=int(not place)) for place, kind in enumerate(types)]
    return replace(facts.event(table, gsn, "ALTERED"), columns=tuple(columns))


def look(registry: SqlRegistry, *names: str, note: str = "varchar(200)") -> None:
    """These tables look so now."""
    seen = [facts.table_seen(name) for name in names]
    told = [replace(one, columns=(one.columns[0], ColumnSeen("note", note, nullable=True))) for one in seen]
    assert registry.begin_cartography(KEY, registry.cartography_digest(KEY))
    registry.record_tables(KEY, told, ())
    registry.end_cartography(KEY, CartographyEnd("mysql", "9.7.0", UUID, note.encode(), None), T0)


def apply(registry: SqlRegistry, number: int, *events: LandedEvent) -> None:
    registry.apply_entry(LANDING, entry(number, cut(number, events=events)))


def versions(client: httpx.Client, table: str = "orders") -> list[tuple[int, str, int | None, str, str, int]]:
    """Number, teller, event, its position, the last column's type, the columns of keys."""
    found = client.get(PATH.format(table)).raise_for_status().json()["definitions"]
    return [
        (
            each["number"], each["teller"], each["gsn"], each["position"], each["columns"][-1]["column_type"],
            sum(len(key["columns"]) for key in each["keys"]),
        )
        for each in found
    ]  # fmt: skip


def test_definition_when_log_and_looks_tell_changes_then_each_is_a_version_with_its_place(
    client: httpx.Client, registry: SqlRegistry
):
    facts.record_shop(registry)
    assert client.get(PATH.format("orders")).json() == {"definitions": [], "dropped": 0, "next_cursor": None}
    apply(registry, 1, altered("orders", 3, "int"), facts.event("orders", 4), altered("orders", 5, "int"))
    look(registry, "orders", note="text")
    look(registry, "orders", note="text")
    apply(registry, 2, altered("orders", 13, "int", "blob"), altered("unheard_of", 14, "int"))
    apply(registry, 2, altered("orders", 13, "int", "blob"))  # as after a restart
    assert versions(client) == [
        (4, "log", 13, f"{UUID}:13", "blob", 1),
        (3, "server", None, "", "text", 1),
        (2, "server", None, "", "varchar(200)", 1),
        (1, "log", 3, f"{UUID}:3", "int", 1),
    ]
    assert versions(client, "unheard_of") == [(1, "log", 14, f"{UUID}:14", "int", 1)]
    first = client.get(PATH.format("orders"), params={"limit": 3}).json()
    rest = client.get(PATH.format("orders"), params={"cursor": first["next_cursor"]}).json()
    assert [each["number"] for each in first["definitions"] + rest["definitions"]] == [4, 3, 2, 1]
    assert rest["definitions"][0]["at_us"] == T0 + 3
    assert first["definitions"][2]["at_us"] is None
    assert client.get(PATH.format("nowhere")).status_code == 404
    here = ("--api", str(client.base_url).rstrip("/"), "--tenant", "acme")
    done = menura("table", "show", "shop", "shop.orders", *here)
    for words in (
        "shop.orders",
        "stopped",
        "note",
        "PRIMARY",
        "+ c1 blob",
        "note varchar(200) -> text",
        f"{UUID}:13",
    ):
        assert words in done.stdout, done


@pytest.mark.parametrize("kind", ["sqlite"])
def test_foreign_keys_when_a_look_shows_them_then_the_table_has_them(client: httpx.Client, registry: SqlRegistry):
    key = ForeignKeySeen("of_order", ("order_id",), ("shop", "orders"), ("id",))
    seen = replace(facts.table_seen("items"), foreign_keys=(key,), more_foreign_keys=2)
    registry.record_agent(facts.agent_seen())
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", UUID, [seen], T0)
    detail = client.get(PATH.format("items").removesuffix("/definitions")).json()
    expected = {"name": "of_order", "columns": ["order_id"], "parent": ["shop", "orders"], "parent_columns": ["id"]}
    assert (detail["foreign_keys"], detail["more_foreign_keys"]) == ([expected], 2)
    here = ("--api", str(client.base_url).rstrip("/"), "--tenant", "acme")
    shown = menura("table", "show", "shop", "shop.items", *here).stdout
    assert "of_order" in shown and "shop.orders" in shown and "2 more foreign keys" in shown


def test_definitions_when_they_change_all_the_time_then_a_table_and_a_source_have_so_many_and_the_rest_is_told(
    client: httpx.Client, registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(definitions, "KEPT_OF_TABLE", 3)
    monkeypatch.setattr(definitions, "KEPT_OF_SOURCE", 7)
    facts.record_shop(registry, "t0", "t1", "t2")
    for number in range(1, 6):
        apply(registry, number, altered("t0", number * 10 - 5, f"varchar({number})"))
    kept = client.get(PATH.format("t0")).json()
    assert ([each["number"] for each in kept["definitions"]], kept["dropped"]) == ([5, 4, 3], 2)
    for turn in range(3):
        look(registry, "t0", "t1", "t2", note=f"varchar({turn})")
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(TableDefinition)).scalar_one() == 7
    told = {name: client.get(PATH.format(name)).json() for name in ("t0", "t1", "t2")}
    assert {name: len(each["definitions"]) + each["dropped"] for name, each in told.items()} == {
        "t0": 9, "t1": 4, "t2": 4,
    }  # fmt: skip
    monkeypatch.setattr(definitions, "MAX_BYTES_OF_SOURCE", 1_000)
    apply(registry, 6, altered("t1", 55, *["int"] * 60))  # larger than all that a source may have
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(TableDefinition)).scalar_one() == 0
    assert client.get(PATH.format("t1")).json() == {"definitions": [], "dropped": 5, "next_cursor": None}
