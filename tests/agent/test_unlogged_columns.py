"""Generated columns whose new values a MariaDB leaves out of its log: tables go on without them, and say so once."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from agent.filter import Filter
from agent.sources.mysql.positions import BinlogPosition, MariadbGtids
from agent.sources.mysql.schema import schema_reader
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.unlogged_columns import UnloggedColumns
from agent.sources.mysql.schema.versions import Gone
from tests.agent.dumping import agent_inside, wait_dumped, wait_equal
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import stops
from tests.servers import Server, server

T: Table = ("shop", "t")
SAID = "(generated columns whose new values the server's log lacks are not sent from here on)"
#: release and settings of servers; one of 11.8.9 leaves all generated columns out, the other one large virtual ones
LACKING: Mapping[str, tuple[str, dict[str, str]]] = {
    "10.11-NOBLOB": ("", {"binlog_row_image": "NOBLOB"}),
    "10.11-NOBLOB-NO_LOG": ("", {"binlog_row_image": "NOBLOB", "binlog_row_metadata": "NO_LOG"}),
    "11.8": ("11.8", {}),
    "11.8-NO_LOG": ("11.8", {"binlog_row_metadata": "NO_LOG"}),
}


@pytest.fixture(params=LACKING)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    release, settings = LACKING[request.param]
    with server("mariadb", tmp_path / "server", release=release, **settings) as found:
        found.create_replication_user()
        found.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, note VARCHAR(20), more TEXT,"
            " kept VARCHAR(30) AS (CONCAT(note, '?')) STORED, shown TEXT AS (CONCAT(note, '!')) VIRTUAL)",
        )
        yield found


def logged_columns(database: Server) -> list[str]:
    """Those whose new values are in its log."""
    return ["id", "note", "more", *([] if database.version == "11.8" else ["kept"])]


def sent(gateway: GatewayDouble) -> list[dict[str, object]]:
    """Rows, the newest last, with the names that they came with."""
    assert not stops(gateway, T), stops(gateway, T)
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in gateway.rows("shop", T)]


def wait_note(gateway: GatewayDouble, note: str) -> dict[str, object]:
    def found() -> list[dict[str, object]]:
        return [row for row in sent(gateway) if row["note"] == note]

    gateway.wait(found)
    return found()[-1]


def altered(gateway: GatewayDouble) -> list[tuple[str, list[str]]]:
    """Statement and columns of each event."""
    return [
        (event.statement, [column.name for column in event.columns])
        for event in gateway.events("shop", T)
        if event.kind == changes_pb2.TableEvent.ALTERED
    ]


def test_table_when_an_update_lacks_generated_columns_then_goes_on_without_them(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", T, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    names = logged_columns(database)
    insert, update = "INSERT INTO shop.t (id, note, more) VALUES (1, 'a', 'm')", "UPDATE shop.t SET note = 'b'"
    with running_agent(config, tmp_path / "log"):
        database.run(insert)
        assert wait_note(gateway, "a").items() >= {"id": 1, "note": "a", "more": "m", "kept": "a?"}.items()
        assert "shown" in wait_note(gateway, "a")
        database.run(update)
        assert list(wait_note(gateway, "b")) == names
    assert altered(gateway) == [(SAID, names)]
    with running_agent(config, tmp_path / "log.2") as process:
        database.run("INSERT INTO shop.t (id, note) VALUES (2, 'c')")
        assert list(wait_note(gateway, "c")) == names
        process.kill()
    with running_agent(config, tmp_path / "log.3"):
        database.run("UPDATE shop.t SET note = 'd' WHERE id = 2")
        assert list(wait_note(gateway, "d")) == names
        assert len(altered(gateway)) == 1
        if "binlog_row_image" not in database.settings:  # else a dump begins the table anew
            dump = gateway.dump("shop", "dump-1", T)
            wait_dumped(gateway, dump)
            wait_equal(gateway, database, dump, ("id",), f"SELECT {', '.join(names)} FROM shop.t")
        database.run("ALTER TABLE shop.t MODIFY kept VARCHAR(30)", "UPDATE shop.t SET note = 'e', kept = 'plain'")
        assert wait_note(gateway, "e")["kept"] == "plain"
    made_plain = gateway.events("shop", T)[-1]
    assert [(column.name, column.is_unknown) for column in made_plain.columns] == [
        (name, name not in names) for name in ("id", "note", "more", "kept")
    ]
    if "kept" not in names:
        assert made_plain.unlogged_changes == "column kept: its values from before were not sent"
        assert made_plain.reread


def test_table_when_statements_come_before_its_columns_and_make_them_anew_then_is_read_once_more_for_each(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """All that is read again after the update: statements from before the columns, and later ones that take them."""
    database.run(
        "CREATE TABLE shop.later (id INT PRIMARY KEY, note VARCHAR(20))",
        "ALTER TABLE shop.later ADD plain INT",
        "ALTER TABLE shop.later ADD shown TEXT AS (CONCAT(note, '!')) VIRTUAL",
        "ALTER TABLE shop.later ADD last INT",
        "INSERT INTO shop.later (id, note) VALUES (1, 'a')",
        "UPDATE shop.later SET note = 'b'",
        "ALTER TABLE shop.later DROP COLUMN shown, ADD COLUMN other INT",
        "ALTER TABLE shop.later ADD shown TEXT AS (CONCAT(note, '?')) VIRTUAL",
        "UPDATE shop.later SET note = 'c'",
    )
    later: Table = ("shop", "later")
    gateway.sync("shop", later, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, tmp_path / "log"):
        gateway.wait(lambda: [row for row in gateway.rows("shop", later) if row["note"] == "c"])
    assert not stops(gateway, later)
    assert not [row for row in gateway.rows("shop", later) if "shown" in row]
    assert (tmp_path / "log").read_text().count("the log lacks new values of generated columns") <= 2


def test_event_when_its_cut_ends_before_the_update_then_is_told_once(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """The agent knows the columns when it reads the inserts again, and stops between the event's cut and the update."""
    row = f"'a', '{'m' * 60_000}'"
    inserts = [f"INSERT INTO shop.t (id, note, more) VALUES ({number}, {row})" for number in range(200)]
    database.run(*inserts, "UPDATE shop.t SET note = 'b' WHERE id = 7")
    gateway.sync("shop", T, oldest=True)
    gateway.cut_bytes = 1  # each portion of bytes ends one
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    names = logged_columns(database)
    gateway.lose_cuts("shop")
    with running_agent(config, tmp_path / "log"):
        gateway.wait(lambda: "the log lacks new values of generated columns" in (tmp_path / "log").read_text())
    gateway.wait_gone("shop")
    gateway.lose_cuts("shop", last_kept_cut=2)
    with running_agent(config, tmp_path / "log.2"):
        gateway.wait(lambda: altered(gateway))
    gateway.wait_gone("shop")
    assert 0 < len(sent(gateway)) < len(inserts)
    gateway.lose_cuts("shop", loses=False)
    with running_agent(config, tmp_path / "log.3"):
        assert list(wait_note(gateway, "b")) == names
    assert altered(gateway) == [(SAID, names)]


#: statements that make `kept`, of which an update lacks the new value, a column that is sent; its name then
MADE_PLAIN = {
    "modified": (("ALTER TABLE shop.t MODIFY kept VARCHAR(30)",), "kept"),
    "renamed": (("ALTER TABLE shop.t CHANGE kept plain VARCHAR(30)",), "plain"),
    "swapped": (
        ("CREATE TABLE shop._t_new LIKE shop.t", "ALTER TABLE shop._t_new MODIFY kept VARCHAR(30)",
         "RENAME TABLE shop.t TO shop._t_old, shop._t_new TO shop.t"),
        "kept",
    ),
    "swapped in two statements": (
        ("CREATE TABLE shop._t_gho LIKE shop.t", "ALTER TABLE shop._t_gho MODIFY kept VARCHAR(30)",
         "RENAME TABLE shop.t TO shop._t_del", "RENAME TABLE shop._t_gho TO shop.t"),
        "kept",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", MADE_PLAIN)
def test_column_when_a_statement_makes_it_a_plain_one_then_its_earlier_values_are_read_again(
    way: str, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Also where the cut with the statement is lost, and it is read again."""
    statements, name = MADE_PLAIN[way]
    with server("mariadb", tmp_path / "server", release="11.8") as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, note VARCHAR(20),"
            " kept VARCHAR(30) AS (CONCAT(note, '?')) STORED)",
            "INSERT INTO shop.t (id, note) VALUES (1, 'a')",
            "UPDATE shop.t SET note = 'b'",
        )
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        with running_agent(config, tmp_path / "log"):
            assert list(wait_note(gateway, "b")) == ["id", "note"]
        cuts = len(gateway.source("shop").committed)
        database.run(*statements, f"INSERT INTO shop.t (id, note, {name}) VALUES (2, 'c', 'plain')")
        gateway.lose_cuts("shop")
        with running_agent(config, tmp_path / "log.2"):
            gateway.wait(lambda: "definition changed" in (tmp_path / "log.2").read_text())
        assert len(gateway.source("shop").committed) == cuts
        gateway.lose_cuts("shop", loses=False)
        with running_agent(config, tmp_path / "log.3"):
            assert wait_note(gateway, "c")[name] == "plain"
    told = next(event for event in gateway.events("shop", T) if event.reread)
    (column,) = [column for column in told.columns if column.name == name]
    assert (column.is_unknown, column.renamed_from) == (True, "")
    assert f"column {name}: its values from before were not sent" in told.unlogged_changes


@pytest.mark.parametrize(
    ("words", "is_null", "text"),
    [("VARCHAR(30)", True, ""), ("VARCHAR(30) NOT NULL DEFAULT 'new'", False, "new")],
    ids=["NULL", "DEFAULT"],
)
def test_column_when_a_plain_one_takes_its_name_in_the_statement_that_drops_it_then_earlier_rows_have_its_default(
    words: str, is_null: bool, text: str, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server", release="11.8") as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, note VARCHAR(20),"
            " kept VARCHAR(30) AS (CONCAT(note, '?')) STORED)",
            "INSERT INTO shop.t (id, note) VALUES (1, 'a')",
            "UPDATE shop.t SET note = 'b'",
            f"ALTER TABLE shop.t DROP COLUMN kept, ADD COLUMN Kept {words}",
            "INSERT INTO shop.t (id, note, kept) VALUES (2, 'c', 'plain')",
        )
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        with running_agent(config, tmp_path / "log"):
            assert wait_note(gateway, "c")["Kept"] == "plain"
    event = gateway.events("shop", T)[-1]
    (column,) = [column for column in event.columns if column.name == "Kept"]
    assert (column.is_null, column.text, column.is_unknown) == (is_null, text, False)
    assert (event.unlogged_changes, event.reread) == ("", False)


def test_column_when_it_is_renamed_and_generated_still_then_is_not_sent_under_its_new_name(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", T, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    names = logged_columns(database)
    with running_agent(config, tmp_path / "log"):
        database.run("INSERT INTO shop.t (id, note) VALUES (1, 'a')", "UPDATE shop.t SET note = 'b'")
        assert list(wait_note(gateway, "b")) == names
        database.run("ALTER TABLE shop.t RENAME COLUMN shown TO Seen", "INSERT INTO shop.t (id, note) VALUES (2, 'c')")
        assert list(wait_note(gateway, "c")) == names
        database.run("UPDATE shop.t SET note = 'd' WHERE id = 2")
        assert list(wait_note(gateway, "d")) == names
    assert (tmp_path / "log").read_text().count("the log lacks new values of generated columns") == 1


@pytest.mark.parametrize("later", ["", "ALTER TABLE shop.t DROP COLUMN more"])
def test_table_when_only_table_maps_describe_it_then_its_definition_says_which_columns_are_generated(
    later: str, database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or, where a later statement hides that, its rows go by until that statement, and a dump is ordered."""
    monkeypatch.setattr(schema_reader, "NEAR_BYTES", -1)  # nothing is asked before a row needs it
    database.run(
        "SET sql_log_bin = 0",
        "CREATE TABLE shop.mapped LIKE shop.t",
        "ALTER TABLE shop.mapped ADD other INT",
    )
    mapped: Table = ("shop", "mapped")
    database.run(
        "INSERT INTO shop.mapped (id, note) VALUES (1, 'a')",
        "UPDATE shop.mapped SET note = 'b'",
        *([later.replace("shop.t", "shop.mapped")] if later else []),
        "ALTER TABLE shop.mapped ADD last INT",
        "UPDATE shop.mapped SET note = 'c'",
    )
    gateway.sync("shop", mapped, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with agent_inside(config):
        gateway.wait(lambda: [row for row in gateway.rows("shop", mapped) if row["note"] == "c"])
    assert not stops(gateway, mapped)
    assert "shown" not in [row for row in gateway.rows("shop", mapped) if row["note"] == "c"][-1]
    gaps = [event for event in gateway.events("shop", mapped) if event.kind == changes_pb2.TableEvent.LOG_GAP]
    assert bool(gaps) == bool(later)
    assert all(gap.reread for gap in gaps)


def test_definition_when_it_says_which_columns_are_generated_then_it_is_kept_whatever_else_it_lacks(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """The default of before a statement is not known when it was learned from the server of after it."""
    database.run(
        "SET sql_log_bin = 0",
        "CREATE TABLE shop.kept LIKE shop.t",
        "ALTER TABLE shop.kept ADD counted INT DEFAULT 1",
        "SET sql_log_bin = 1",
        "INSERT INTO shop.kept (id, note, counted) VALUES (1, 'a', 1)",
        "UPDATE shop.kept SET note = 'b', more = 'm', counted = 2",
        "ALTER TABLE shop.kept ALTER counted SET DEFAULT 2",
        "UPDATE shop.kept SET note = 'c'",
    )
    kept: Table = ("shop", "kept")
    gateway.sync("shop", kept, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, tmp_path / "log"):
        gateway.wait(lambda: [row for row in gateway.rows("shop", kept) if row["note"] == "c"])
    assert not stops(gateway, kept)
    assert "shown" not in gateway.rows("shop", kept)[-1]
    assert (tmp_path / "log").read_text().count("definitions learned") == 1


def test_table_when_it_begins_anew_then_its_generated_columns_are_sent_until_an_update_lacks_them(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    names = logged_columns(database)
    gateway.sync("shop", T, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, tmp_path / "log"):
        database.run("INSERT INTO shop.t (id, note) VALUES (1, 'a')", "UPDATE shop.t SET note = 'b'")
        assert list(wait_note(gateway, "b")) == names
        gateway.sync("shop", T, dump="dump-1")
        dump = gateway.dump("shop", "dump-1", T)
        wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",), "SELECT * FROM shop.t")
        database.run("UPDATE shop.t SET note = 'c'")
        assert list(wait_note(gateway, "c")) == names
    assert altered(gateway) == [(SAID, names)] * 2


def test_columns_when_their_table_goes_before_they_were_told_then_nobody_tells_them(tmp_path: Path) -> None:
    def at(number: int) -> BinlogPosition:
        return BinlogPosition(MariadbGtids.parse(f"0-1-{number}"))

    with closing(SchemaHistory(tmp_path, "shop")) as history:
        columns = UnloggedColumns("shop", history, Filter())
        assert columns.found(T, ["kept"], at(5))
        columns.begin({T: at(1)}, ())
        assert columns.is_untold(T)
        columns.defined(T, Gone(), {}, at(9))
        columns.followed(7)
        columns.committed(7)
        assert not columns.is_untold(T)
