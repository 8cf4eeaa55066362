"""What commands show in a terminal of 80 columns, and in narrower ones: words stay whole."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from controlplane_api.commands.grid import Grid
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, event, file, started, stopped
from tests.controlplane_api.lake_facts import Sink, lake_source, stop

TABLES = ("customer_loyalty_point_history", "warehouse_stock_reservations", "orders")
MISSING = (
    "the log begins at 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77 and earlier transactions were purged; a dump brings"
    " the rows that they wrote"
)
GONE = "The file data/acme/shop/shop/orders/1.parquet is gone from the landing; restore it, or dump the table anew."


@pytest.fixture
def here(database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A terminal of 80 columns: one table lacks earlier rows, one has failed, one is held up in the lake."""
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    facts.record_shop(registry, *TABLES)
    health = facts.health(rows=123_456_789, lag_us=90_000_000)
    facts.record_heartbeat(registry, "acme", "agent-1", 1 << 27, 2, [health], facts.fresh_us())
    with serving(database) as url:
        terminal = {"MENURA_API": url, "MENURA_TENANT": "acme", "COLUMNS": "80"}
        terminal |= {"TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"}
        assert menura("sync", "start", "shop", *(f"shop.{name}" for name in TABLES), **terminal).returncode == 0
        begun = [started(TABLES[0], 0, MISSING), started(TABLES[1], 0), started("orders", 0)]
        registry.apply_entry(LANDING, entry(1, cut(1, file(TABLES[0], 1_234_567), start=begun)))
        statement = f"ALTER TABLE `shop`.`{TABLES[0]}` ADD COLUMN points_expire_at DATETIME NULL"
        altered = replace(event(TABLES[0], 12, "ALTERED"), statement=statement)
        registry.apply_entry(LANDING, entry(2, cut(2, events=[altered], stop=[stopped(TABLES[1], 2)])))
        Sink().tell(database, 0, entry=1, sources=(lake_source(1),), stopped=(stop("orders", message=GONE),))
        effective = [TableEffective("shop", name, "STREAMING") for name in TABLES]
        registry.record_effective(KEY, 1, effective, None, facts.T0)
        assert menura("dump", "start", "shop", f"shop.{TABLES[0]}", **terminal).returncode == 0
        yield terminal


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("status", ["agent-1", *(f"shop.{name}" for name in TABLES), "failed", "pending", MISSING, GONE]),
        ("tables shop", [*(f"shop.{name}" for name in TABLES), "failed", "pending", MISSING, GONE]),
        ("sources", ["shop", "agent-1", "1/3", "1.5 min", "cut 1 of 2"]),
        ("agents", ["agent-1", "yes", "db1.example", "128.0 MiB"]),
        (f"events shop shop.{TABLES[0]}", ["altered", f"`shop`.`{TABLES[0]}`", "points_expire_at DATETIME NULL"]),
        ("lakes", ["main", "following", "/data/lake", LANDING]),
        ("dump list", [f"shop.{TABLES[0]}", "pending"]),
    ],
)
def test_tables_when_the_terminal_has_80_columns_then_each_word_is_whole(
    here: dict[str, str], command: str, words: list[str]
):
    done = menura(*command.split(), **here)
    assert done.returncode == 0, done.stderr
    shown = Text.from_ansi(done.stdout).plain
    assert max(map(cell_len, shown.splitlines())) <= 80, shown
    assert not words_of(*words) - words_of(shown), shown


def words_of(*texts: str) -> set[str]:
    return {word.rstrip(":;,.") for text in texts for word in text.split()}


def shown_at(width: int, name: str) -> str:
    grid = Grid(
        "TABLE", "STATE", "ROWS", "LAKE", "NOTE",
        right=["ROWS"], folds=["LAKE"], gives_way=["ROWS", "LAKE"], below="NOTE", name="TABLE",
    )  # fmt: skip
    grid.add_row(name, "streaming", "1,234,567", "following at cut 1,234 of 1,240", MISSING)
    grid.add_row("shop.orders", "failed", "8", "following at cut 8", "")
    console = Console(width=width, file=io.StringIO())
    console.print(grid)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert max(cell_len(line.rstrip()) for line in shown.splitlines()) <= width, shown
    return shown


@pytest.mark.parametrize("name", [f"shop.{TABLES[0]}", "a.b", "shop.Bücher_日本"])
def test_grid_when_there_is_room_for_the_longest_word_then_none_is_broken_at_any_width(name: str):
    words = words_of(name, "streaming", "failed", MISSING)
    for width in range(max(map(cell_len, words)) + 1, 250):
        assert not words - words_of(shown_at(width, name)), width


def test_grid_when_there_is_less_room_then_columns_give_way_in_their_order_and_are_named():
    wide, narrower, narrow, least = (shown_at(width, "shop.orders") for width in (250, 70, 50, 20))
    assert "Left out" not in wide and "shop.orders:" not in wide
    assert "Left out" not in narrower and f"shop.orders: {MISSING[:17]}" in narrower
    assert "Left out: ROWS. A wider terminal" in narrow and "ROWS  " not in narrow
    assert "\n  STATE streaming " in least
