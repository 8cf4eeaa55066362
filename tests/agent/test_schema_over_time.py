"""Definitions that change while the log is read: rows before and after each change have their own names and values.

What is read live, by an agent that is killed again and again, equals what is read from the oldest position later, and
both equal what SELECT showed when the rows were written.
"""

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.servers import Flavor, Server, server

T: Table = ("shop", "t")
TableEvent = changes_pb2.TableEvent
MINIMAL = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}


@dataclass
class Written:
    """What was written to a table, as SELECT showed it at that time."""

    database: Server
    rows: list[dict[str, object]] = field(default_factory=list)
    number: int = 0

    def write(self, values: str = "", columns: str = "") -> None:
        """One row with a new id, and `columns` with `values`."""
        self.number += 1
        names = f"id, {columns}" if columns else "id"
        texts = f"{self.number}, {values}" if values else str(self.number)
        self.database.run(f"INSERT INTO shop.t ({names}) VALUES ({texts})")
        self.note(f"id = {self.number}")

    def note(self, where: str) -> None:
        names = [
            str(row[0])
            for row in self.database.run(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = 't'"
                " ORDER BY ordinal_position"
            )
        ]
        listed = ", ".join(f"`{name}`" for name in names)
        found = self.database.run(f"SELECT {listed} FROM shop.t WHERE {where} ORDER BY id")
        self.rows += [dict(zip(names, row, strict=True)) for row in found]


@dataclass(frozen=True)
class Step:
    statements: tuple[str, ...]
    #: of a row that is written afterwards
    columns: str
    values: str
    events: tuple[str, ...]
    #: of rows that the statements write themselves
    made: str = "FALSE"


STEPS = (
    Step(("ALTER TABLE shop.t ADD COLUMN a INT DEFAULT 5",), "a", "7", ("ALTERED",)),
    Step(
        ("ALTER TABLE shop.t ADD b VARCHAR(20) CHARACTER SET latin1 NOT NULL DEFAULT 'it''s é' FIRST",),
        "b",
        "'ü'",
        ("ALTERED",),
    ),
    Step(("ALTER TABLE shop.t RENAME COLUMN a TO c",), "c", "8", ("ALTERED",)),
    Step(
        ("ALTER TABLE shop.t CHANGE C d BIGINT UNSIGNED, ADD e ENUM('x','y') AFTER id",),
        "d, e",
        "18446744073709551615, 'y'",
        ("ALTERED",),
    ),
    Step(("ALTER TABLE shop.t DROP COLUMN d",), "e", "'x'", ("ALTERED",)),
    Step(("ALTER TABLE shop.t MODIFY e ENUM('z','x','y') AFTER id, ALGORITHM=COPY",), "e, b", "'z', ''", ("ALTERED",)),
    Step(("/*!50100 ALTER TABLE */ shop.t /*! ADD f DECIMAL(10,2) */ -- ADD g INT",), "f", "-1.25", ("ALTERED",)),
    Step(
        ('SET sql_mode = CONCAT(@@sql_mode, ",ANSI_QUOTES")', 'ALTER TABLE "shop"."t" ADD "select" INT'),
        "`select`",
        "3",
        ("ALTERED",),
    ),
    Step(("ALTER TABLE shop.t ADD i INT, ALGORITHM=INSTANT",), "i", "4", ("ALTERED",)),
    Step(("ALTER TABLE shop.t DROP COLUMN i, ALGORITHM=INSTANT",), "f", "2", ("ALTERED",)),
    Step(("CREATE INDEX by_f ON shop.t (f)", "USE shop", "TRUNCATE t"), "f", "3", ("ALTERED", "TRUNCATED")),
    Step(
        ("DROP TABLE shop.t", "CREATE TABLE shop.t (id BIGINT PRIMARY KEY, other TEXT)"),
        "other",
        "'o'",
        ("DROPPED", "CREATED"),
    ),
    Step(
        ("RENAME TABLE shop.t TO shop.away", "CREATE TABLE shop.t LIKE shop.away"),
        "other",
        "'p'",
        ("RENAMED", "CREATED"),
    ),
    Step(
        (
            "DROP TABLE shop.t",
            "CREATE TABLE shop.t (w VARCHAR(9), PRIMARY KEY (id)) SELECT 1000 + id AS id, other AS w FROM shop.away",
        ),
        "w",
        "'q'",
        ("DROPPED", "CREATED"),
        "id > 1000",
    ),
    Step(
        (
            "DROP DATABASE shop",
            "CREATE DATABASE shop CHARACTER SET latin1",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, w VARCHAR(9))",
        ),
        "w",
        "'ÿ'",
        ("DROPPED", "CREATED"),
    ),
    Step(("ALTER TABLE shop.t ADD x VARCHAR(9), CONVERT TO CHARACTER SET utf8mb4",), "w, x", "'☃', '☃'", ("ALTERED",)),
)


def expect(gateway: GatewayDouble, written: Written, seconds: float = 300.0) -> None:
    def read() -> list[dict[str, object]]:
        return [{k: v for k, v in row.items() if not k.startswith("_")} for row in gateway.rows("shop", T)]

    try:
        gateway.wait(lambda: len(read()) >= len(written.rows), seconds)
    finally:
        stops = [stop.error for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert not stops, stops
        assert read() == written.rows


def events(gateway: GatewayDouble) -> list[changes_pb2.TableEvent]:
    return gateway.events("shop")


def kinds(gateway: GatewayDouble) -> list[str]:
    return [TableEvent.Kind.Name(event.kind) for event in events(gateway)]


def run_step(written: Written, step: Step) -> None:
    written.database.run(*step.statements)
    written.note(step.made)
    written.write(step.values, step.columns)


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_definition_when_it_changes_while_the_agent_is_killed_then_each_row_has_its_own_columns(
    flavor: Flavor, metadata: str, gateway: GatewayDouble, tmp_path: Path
) -> None:
    row_metadata = MINIMAL[flavor] if metadata == "MINIMAL" else "FULL"
    dice = random.Random(5)
    with server(flavor, tmp_path / "server", binlog_row_metadata=row_metadata) as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4", "CREATE TABLE shop.t (id INT PRIMARY KEY, `nämé` INT NULL)"
        )
        written = Written(database)
        written.write("1", "`nämé`")
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        steps = list(STEPS)
        while steps:
            with running_agent(config, tmp_path / "log") as process:
                before = len(gateway.source("shop").committed)
                for _ in range(5):
                    if steps:
                        run_step(written, steps.pop(0))
                if not steps:
                    expect(gateway, written)
                else:
                    gateway.wait(lambda before=before: len(gateway.source("shop").committed) > before)
                    time.sleep(dice.random() / 4)
                    process.kill()
        told = kinds(gateway)
        assert told == ["CREATED", *(kind for step in STEPS for kind in step.events)]
        numbers = sorted([event.gsn for event in events(gateway)] + [row["_gsn"] for row in gateway.rows("shop", T)])
        assert numbers == list(range(1, len(numbers) + 1))
        afterwards = GatewayDouble()
        try:
            afterwards.sync("shop", T, oldest=True)
            folder = tmp_path / "afterwards"
            folder.mkdir()
            config = write_config(folder, afterwards.address, {"shop": {"client": client(database)}})
            with running_agent(config, tmp_path / "log"):
                expect(afterwards, written)
            assert [event.SerializeToString() for event in events(afterwards)] == [
                event.SerializeToString() for event in events(gateway)
            ]
        finally:
            afterwards.stop()


def stops(gateway: GatewayDouble) -> list[changes_pb2.TableStopped]:
    return [stop for cut in gateway.source("shop").committed for stop in cut.stopped]


def read_from_oldest(
    database: Server, gateway: GatewayDouble, folder: Path, written: Written, *statements: str, **source: object
) -> None:
    """Read up to here, stop, lose the history, run the statements while nobody looks, and go on."""
    gateway.sync("shop", T, oldest=True)
    config = write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})
    with running_agent(config, folder / "log"):
        expect(gateway, written)
    shutil.rmtree(folder / "state")
    written.write()
    database.run(*statements)
    written.write()
    with running_agent(config, folder / "log"):
        gateway.wait(lambda: stops(gateway) or len(gateway.rows("shop", T)) == len(written.rows))


@pytest.fixture(params=["mariadb", "mysql"])
def described_by_nobody(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server whose log does not describe columns, with a table."""
    with server(request.param, tmp_path / "server", binlog_row_metadata=MINIMAL[request.param]) as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT UNSIGNED DEFAULT 4000000000)"
        )
        yield database


def test_definition_when_columns_change_places_unseen_then_their_lengths_tell(
    described_by_nobody: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    described_by_nobody.run("ALTER TABLE shop.t ADD b VARCHAR(10), ADD c VARCHAR(20)")
    written = Written(described_by_nobody)
    gateway.sync("shop", T, oldest=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(described_by_nobody)}})
    with running_agent(config, tmp_path / "log"):
        written.write("'b', 'c'", "b, c")
        expect(gateway, written)
        described_by_nobody.run("SET sql_log_bin = 0", "ALTER TABLE shop.t MODIFY b VARCHAR(10) AFTER c")
        written.write("'b', 'c'", "b, c")
        expect(gateway, written)


def test_definition_when_the_server_hides_the_key_that_it_adds_then_rows_have_it(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = {"binlog_row_metadata": "MINIMAL", "sql_generate_invisible_primary_key": "ON"}
    hides = {"show_gipk_in_create_table_and_information_schema": "OFF"}
    with server("mysql", tmp_path / "server", **settings, **hides) as database:
        database.create_replication_user()
        database.run("CREATE DATABASE shop", "CREATE TABLE shop.t (a INT)", "INSERT INTO shop.t VALUES (7), (8)")
        assert "my_row_id" not in str(database.run("SHOW CREATE TABLE shop.t"))
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        with running_agent(config, tmp_path / "log"):
            gateway.wait(lambda: stops(gateway) or len(gateway.rows("shop", T)) == 2)
            assert [(row["my_row_id"], row["a"]) for row in gateway.rows("shop", T)] == [(1, 7), (2, 8)]


def test_definition_when_the_history_is_lost_then_statements_since_are_undone(
    described_by_nobody: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    written = Written(described_by_nobody)
    written.write()
    read_from_oldest(
        described_by_nobody,
        gateway,
        tmp_path,
        written,
        "ALTER TABLE shop.t RENAME COLUMN a TO b, ADD c INT DEFAULT 3 FIRST",
        "CREATE INDEX by_c ON shop.t (c)",
        "ALTER TABLE shop.t ENGINE=InnoDB, ADD COLUMN d INT UNSIGNED",
    )
    expect(gateway, written)
    assert kinds(gateway)[-3:] == ["ALTERED", "ALTERED", "ALTERED"]
    assert [column.name for column in events(gateway)[-1].columns] == ["c", "id", "b", "d"]


@pytest.mark.parametrize("policy", ["reread", "stop"])
def test_definition_when_the_history_is_lost_and_a_statement_can_not_be_undone_then_goes_on_behind_it_or_stops(
    described_by_nobody: Server, gateway: GatewayDouble, tmp_path: Path, policy: str
) -> None:
    written = Written(described_by_nobody)
    written.write()
    gateway.sync("shop", T, oldest=True)
    source = {"client": client(described_by_nobody), "unlogged_changes": policy}
    config = write_config(tmp_path, gateway.address, {"shop": source})
    with running_agent(config, tmp_path / "log"):
        expect(gateway, written)
    shutil.rmtree(tmp_path / "state")
    described_by_nobody.run("INSERT INTO shop.t (id) VALUES (50)", "ALTER TABLE shop.t DROP COLUMN a")
    written.write()
    described_by_nobody.run("INSERT INTO shop.t (id) VALUES (60)")
    written.note("id = 60")
    with running_agent(config, tmp_path / "log"):
        if policy == "stop":
            gateway.wait(lambda: stops(gateway))
            (stop,) = stops(gateway)
            assert stop.error.code == "TABLE_SCHEMA_UNKNOWN"
            assert "ALTER TABLE of transaction" in stop.error.found
            assert "binlog_row_metadata" in stop.error.remedy
            return
        expect(gateway, written)
    opened, altered, closed = events(gateway)[-3:]
    assert [TableEvent.Kind.Name(event.kind) for event in (opened, altered, closed)] == [
        "LOG_GAP",
        "ALTERED",
        "LOG_GAP",
    ]
    assert opened.reread
    assert closed.reread
    assert "ALTER TABLE of transaction" in opened.unlogged_changes
    assert opened.gap_from == closed.gap_from
    assert (opened.gap_to, closed.gap_to) == ("", altered.position)
    gsns = [row["_gsn"] for row in gateway.rows("shop", T)]
    assert gsns[0] < opened.gsn < altered.gsn < closed.gsn < gsns[1]


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_statement_when_it_speaks_of_what_the_filter_keeps_back_then_nothing_of_that_leaves(
    flavor: Flavor, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server(flavor, tmp_path / "server") as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, hidden_tax INT, note INT)",
            "CREATE TABLE shop.salaries (id INT PRIMARY KEY)",
        )
        gateway.sync("shop", T, now=True)
        rules = {"salaries": None, "shop.t": {"ignored_columns": ["hidden_tax"]}}
        config = write_config(
            tmp_path,
            gateway.address,
            {"shop": {"client": client(database), "filter_policy": "accept", "filter": rules}},
        )
        with running_agent(config, tmp_path / "log"):
            gateway.wait(lambda: gateway.source("shop").committed)
            database.run(
                "ALTER TABLE shop.t ADD more INT DEFAULT 5 COMMENT 'pwd=geheim'",
                "ALTER TABLE shop.t ALTER hidden_tax SET DEFAULT 987654",
                "ALTER TABLE shop.t ADD FOREIGN KEY (note) REFERENCES shop.salaries (id)",
                "ALTER TABLE shop.salaries ADD canary INT",
                "RENAME TABLE shop.salaries TO shop.x, shop.t TO shop.t_away, shop.x TO shop.salaries",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, hidden_tax INT)",
                "DROP TABLE shop.t_away, shop.t",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, hidden_tax INT)",
                "ALTER TABLE shop.t RENAME COLUMN hidden_tax TO shown",
            )
            gateway.wait(lambda: stops(gateway))
        assert kinds(gateway) == ["ALTERED"] * 3 + ["RENAMED", "CREATED", "DROPPED", "CREATED"]
        assert [stop.error.code for stop in stops(gateway)] == ["TABLE_IGNORED_RENAMED"]
        first = events(gateway)[0]
        assert [column.name for column in first.columns] == ["id", "note", "more"]
        assert first.columns[2].text == "5"
        assert first.statement == "ALTER TABLE shop.t ADD more INT DEFAULT 5 COMMENT '***'"
        sent = b"".join(event.SerializeToString() for event in events(gateway))
        for secret in (b"geheim", b"hidden_tax", b"987654", b"salaries", b"canary"):
            assert secret not in sent


def test_event_when_the_table_has_a_hidden_hash_column_then_names_what_its_rows_have(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server") as database:
        database.create_replication_user()
        database.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, note TEXT, UNIQUE (note))")
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        with running_agent(config, tmp_path / "log"):
            database.run("ALTER TABLE shop.t ADD more INT", "INSERT INTO shop.t VALUES (1, 'a', 2)")
            gateway.wait(lambda: gateway.rows("shop", T))
    (row,) = gateway.rows("shop", T)
    for event in events(gateway):
        assert {column.name for column in event.columns} <= row.keys()
    assert kinds(gateway) == ["CREATED", "ALTERED"]


def test_vector_when_it_is_added_with_a_default_then_the_event_has_what_earlier_rows_hold(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server", release="11.8") as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "INSERT INTO shop.t VALUES (1)"
        )
        gateway.sync("shop", T, oldest=True)
        config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
        with running_agent(config, tmp_path / "log"):
            database.run("ALTER TABLE shop.t ADD v VECTOR(1) NOT NULL DEFAULT x'0000803F'")
            gateway.wait(lambda: kinds(gateway) == ["CREATED", "ALTERED"])
        ((shown,),) = database.run("SELECT HEX(v) FROM shop.t")
    assert events(gateway)[1].columns[1].text == shown == "0000803F"
