"""What is known of tables across starts: of committed cuts alone, and read again where it is lost."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from agent.errors import StateFolderInUse
from agent.sources.postgresql.server.missing_values import Missing, Unrepresentable
from agent.sources.postgresql.stream.definition_store import DefinitionStore, Known
from tests.agent.postgresql.test_definition_changes import column, table

ORDERS, ITEMS = ("shop", "orders"), ("shop", "items")
SYSTEM = "7300000000000000001"
FIRST = Known(
    table(
        column(1, "id"),
        column(2, "naïve", 1700, ((10 << 16) | 2) + 4, missing="1.50", not_null=True),
        column(3, "c", missing=Missing.UNKNOWN, generated=True),
        column(5, "d", 1082, missing=Unrepresentable("infinity"), collation='"de-x-icu"'),
        key=("id",),
        schema="shop",
        name="orders",
        labels=((20000, "sad", 731),),
        composites=((20001, (1, 3), 4),),
    ),
    since_lsn=77,
    is_unproven=True,
    is_retyped=True,
    published="16390 all",
)
SECOND = Known(None, published="16390 all")


def opened(folder: Path, next_cut: int, *anew: tuple[str, str], system: str = SYSTEM) -> dict[tuple[str, str], Known]:
    with closing(DefinitionStore(folder, "shop")) as store:
        return store.begin(system, 5, next_cut, {ORDERS, ITEMS}, anew)


def test_versions_when_their_cuts_were_committed_then_the_newest_is_known(tmp_path: Path) -> None:
    with closing(DefinitionStore(tmp_path, "shop")) as store:
        assert store.begin(SYSTEM, 5, 1, {ORDERS}, ()) == {}
        store.put(ORDERS, FIRST, 1)
        store.save()
        store.put(ORDERS, SECOND, 3)
        store.save()
    assert opened(tmp_path, 2) == opened(tmp_path, 3) == {ORDERS: FIRST}
    assert opened(tmp_path, 4) == {ORDERS: SECOND}
    assert opened(tmp_path, 1) == {}
    assert opened(tmp_path, 4, ORDERS) == {}
    assert opened(tmp_path, 4, system="7300000000000000002") == {}


def test_versions_when_later_ones_are_committed_then_old_ones_go(tmp_path: Path) -> None:
    with closing(DefinitionStore(tmp_path, "shop")) as store:
        store.begin(SYSTEM, 5, 1, {ORDERS}, ())
        for cut in range(1, 10):
            store.put(ORDERS, FIRST if cut % 2 else SECOND, cut)
            store.committed(cut - 2)
            store.save()
        (stored,) = json.loads((tmp_path / "shop.definitions.json").read_text())["tables"]
        assert [version["cut"] for version in stored["versions"]] == [7, 8, 9]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"format": 1}', b"[1]", b'{"format":2,"tables":[{}]}'])
def test_file_when_it_is_damaged_then_nothing_is_known(tmp_path: Path, damage: bytes) -> None:
    with closing(DefinitionStore(tmp_path, "shop")) as store:
        store.begin(SYSTEM, 5, 1, {ORDERS}, ())
        store.put(ORDERS, FIRST, 1)
        store.save()
    (tmp_path / "shop.definitions.json").write_bytes(damage)
    assert opened(tmp_path, 2) == {}


def test_file_when_a_version_of_it_is_damaged_anywhere_then_it_is_read_or_nothing_is_known(tmp_path: Path) -> None:
    with closing(DefinitionStore(tmp_path, "shop")) as store:
        store.begin(SYSTEM, 5, 1, {ORDERS}, ())
        store.put(ORDERS, FIRST, 1)
        store.save()
    path = tmp_path / "shop.definitions.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + whole[at + 3 :])
        opened(tmp_path, 2)


def test_file_when_another_process_has_it_then_that_is_said(tmp_path: Path) -> None:
    with closing(DefinitionStore(tmp_path, "shop")), pytest.raises(StateFolderInUse):
        DefinitionStore(tmp_path, "shop")
