"""The schema history's file: what it keeps, drops and survives."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.errors import StateFolderInUse, StateFolderUnusable
from agent.sources.mysql.ddl.model import ColumnDefinition, Default, KeyDefinition, TableDefinition
from agent.sources.mysql.positions import BinlogPosition, MariadbGtids, MysqlGtids
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.versions import NEVER_SEEN, Gone, Unknown, Version
from agent.sources.mysql.types import ColumnType, Kind, invalid_label

ORDERS = ("shop", "orders")
ITEMS = ("shop", "items")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(number: int) -> BinlogPosition:
    return BinlogPosition(MysqlGtids.parse(f"{UUID}:1-{number}"), UUID, "binlog.000001", number * 100)


def definition(*names: str) -> TableDefinition:
    enum = ColumnType(Kind.ENUM, charset="utf8mb4", labels=("a'b", "ä,c", "", invalid_label(b"\xe4")))
    columns = [ColumnDefinition("id", ColumnType(Kind.INT, unsigned=True), nullable=False, default=Default.NONE)]
    columns += [ColumnDefinition(name, enum, default=Default.LITERAL, default_text="ä,c") for name in names]
    return TableDefinition(tuple(columns), ("id",), "utf8mb4", keys=(KeyDefinition("k", (("id", 0), ("zz", 9))),))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SchemaHistory]:
    with closing(SchemaHistory(tmp_path, "shop")) as opened:
        yield opened


def begin(history: SchemaHistory, start: int, **tables: int) -> dict[str, Version]:
    names = {("shop", name): at(number) for name, number in tables.items()}
    begun = history.begin(at(start), names, ())
    return {name: version for (_, name), version in begun.versions.items()}


def test_begin_when_versions_were_recorded_then_each_table_has_the_newest_that_its_position_covers(
    history: SchemaHistory,
) -> None:
    assert begin(history, 1, orders=1, items=1) == {"orders": NEVER_SEEN, "items": NEVER_SEEN}
    history.record(at(1), {ORDERS: definition("a"), ITEMS: Gone("_items_del")})
    history.record(at(5), {ORDERS: definition("a", "b")})
    history.record(at(9), {ORDERS: Unknown("a DDL hides it"), ITEMS: definition()})
    history.followed(at(12))
    assert begin(history, 12, orders=12, items=12) == {"orders": Unknown("a DDL hides it"), "items": definition()}


def test_begin_when_the_cut_was_not_committed_then_later_versions_are_gone(history: SchemaHistory) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    history.record(at(5), {ORDERS: definition("b")})
    history.followed(at(6))
    assert begin(history, 4, orders=4) == {"orders": definition("a")}
    history.followed(at(8))
    assert begin(history, 8, orders=8) == {"orders": definition("a")}


def test_begin_when_a_table_is_ahead_then_what_it_had_there_counts(history: SchemaHistory) -> None:
    begin(history, 1, orders=1, items=1)
    history.record(at(1), {ORDERS: definition("a"), ITEMS: definition("a")})
    history.record(at(5), {ORDERS: definition("b"), ITEMS: definition("b")})
    history.followed(at(7))
    assert begin(history, 2, orders=2, items=7) == {"orders": definition("a"), "items": definition("b")}
    begun = history.begin(at(2), {ORDERS: at(2), ITEMS: at(7)}, ())
    assert not begun.behind


def test_begin_when_the_stream_went_on_elsewhere_then_says_from_where_changes_are_missing(
    history: SchemaHistory,
) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    history.followed(at(6))
    begun = history.begin(at(50), {ORDERS: at(50)}, ())
    assert begun.versions == {ORDERS: definition("a")}
    assert begun.behind == {ORDERS: at(6)}


def test_begin_when_a_table_had_stopped_then_it_is_known_up_to_its_stop(history: SchemaHistory) -> None:
    begin(history, 1, orders=1, items=1)
    history.record(at(1), {ORDERS: definition("a"), ITEMS: definition("a")})
    history.ended(ITEMS, at(3))
    history.followed(at(6))
    begin(history, 6, orders=6)
    history.followed(at(9))
    begun = history.begin(at(3), {ORDERS: at(9), ITEMS: at(3)}, ())
    assert begun.versions[ITEMS] == definition("a")
    assert not begun.behind
    begun = history.begin(at(3), {ORDERS: at(9), ITEMS: at(9)}, ())
    assert begun.behind == {ITEMS: at(3)}


def test_begin_when_a_table_begins_anew_then_its_earlier_life_does_not_count(history: SchemaHistory) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    assert history.begin(at(3), {ORDERS: at(3)}, [ORDERS]).versions == {ORDERS: NEVER_SEEN}


def test_earlier_when_a_table_has_begun_anew_then_it_is_known_until_the_new_life_is(history: SchemaHistory) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    history.followed(at(2))
    for _ in range(2):
        assert history.earlier(ORDERS, at(3)) == (definition("a"), at(2))
        history.begin(at(3), {ORDERS: at(3)}, [ORDERS])
    assert history.earlier(ORDERS, at(4)) == (definition("a"), at(2))
    history.record(at(4), {ORDERS: Unknown("a DDL hides it")})
    assert history.earlier(ORDERS, at(4)) is None
    history.begin(at(4), {ORDERS: at(4)}, [ORDERS])
    assert history.earlier(ORDERS, at(4)) is None


def test_earlier_when_the_table_goes_on_then_it_is_forgotten(history: SchemaHistory) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    history.begin(at(3), {ORDERS: at(3)}, [ORDERS])
    history.begin(at(3), {}, ())
    assert history.earlier(ORDERS, at(3)) == (definition("a"), at(1))
    assert history.begin(at(3), {ORDERS: at(3)}, ()).versions == {ORDERS: NEVER_SEEN}
    assert history.earlier(ORDERS, at(3)) is None


def test_compact_when_a_position_is_committed_then_one_version_per_table_is_left_of_what_is_older(
    history: SchemaHistory, tmp_path: Path
) -> None:
    begin(history, 1, orders=1)
    for number in range(1, 200):
        history.record(at(number), {ORDERS: definition(f"c{number}")})
    history.compact(at(198))
    history.followed(at(200))
    assert begin(history, 198, orders=198) == {"orders": definition("c198")}
    history.close()
    with closing(sqlite3.connect(tmp_path / "shop.history.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM versions").fetchall() == [(1,)]


def test_open_when_another_agent_has_the_file_then_says_so(history: SchemaHistory, tmp_path: Path) -> None:
    begin(history, 1, orders=1)
    with pytest.raises(StateFolderInUse, match="another process has it open"):
        SchemaHistory(tmp_path, "shop")


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE versions",
        "PRAGMA user_version = 99",
        "PRAGMA application_id = 1",
        "UPDATE facts SET value = 'other' WHERE name = 'source'",
        "UPDATE versions SET definition = '{\"columns\": [{}]}'",
        "UPDATE versions SET definition = '[]'",
        "UPDATE versions SET since = '{}'",
        'UPDATE facts SET value = \'{"scheme": "MysqlGtids", "gtid_set": "x"}\' WHERE name = \'tracked\'',
        "UPDATE tables SET began = 'x'",
        "bytes",
        "all",
    ],
)
def test_begin_when_the_file_is_broken_or_foreign_then_it_is_put_aside_and_made_anew(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "shop.history.sqlite"
    with closing(SchemaHistory(tmp_path, "shop")) as history:
        begin(history, 1, orders=1)
        history.record(at(1), {ORDERS: definition("a")})
    if damage == "all":
        path.write_bytes(b"not a database, and longer than a header of one" * 10)
    elif damage == "bytes":
        whole = bytearray(path.read_bytes())
        whole[4096:12288] = b"\x55" * 8192
        path.write_bytes(whole)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(damage)
    with closing(SchemaHistory(tmp_path, "shop")) as history:
        assert begin(history, 1, orders=1) == {"orders": NEVER_SEEN}
        history.record(at(1), {ORDERS: definition("b")})
        assert begin(history, 1, orders=1) == {"orders": definition("b")}
    assert len(list(tmp_path.glob("shop.history.sqlite.*"))) == 1


def test_begin_when_positions_are_of_another_kind_then_the_history_is_made_anew(
    history: SchemaHistory, tmp_path: Path
) -> None:
    begin(history, 1, orders=1)
    history.record(at(1), {ORDERS: definition("a")})
    elsewhere = BinlogPosition(MariadbGtids.parse("0-1-9"), "", "binlog.000001", 9)
    assert history.begin(elsewhere, {ORDERS: elsewhere}, ()).versions == {ORDERS: NEVER_SEEN}
    assert len(list(tmp_path.glob("shop.history.sqlite.*"))) == 1


def test_open_when_the_folder_can_not_be_made_then_says_where(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateFolderUnusable, match="state"):
        SchemaHistory(tmp_path / "state", "shop")


def test_open_when_it_is_made_then_only_its_owner_may_read_it(tmp_path: Path) -> None:
    SchemaHistory(tmp_path / "state", "shop").close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "shop.history.sqlite").stat().st_mode & 0o777 == 0o600
