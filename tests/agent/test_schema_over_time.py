"""Definitions that change while the log is read: rows before and after each change have their own names and values.

What is read live, by an agent that is killed again and again, equals what is read from the oldest position later, and
both equal what SELECT showed when the rows were written.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from menura.v1 import mysql_binlog_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.servers import Flavor, Server, server

T: Table = ("shop", "t")
TableEvent = mysql_binlog_pb2.TableEvent
MINIMAL = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    double = GatewayDouble()
    yield double
    double.stop()


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


def expect(gateway: GatewayDouble, written: Written, seconds: float = 30.0) -> None:
    def read() -> list[dict[str, object]]:
        return [{k: v for k, v in row.items() if not k.startswith("_")} for row in gateway.rows("shop", T)]

    try:
        gateway.wait(lambda: len(read()) >= len(written.rows), seconds)
    finally:
        stops = [stop.error for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert not stops, stops
        assert read() == written.rows


def events(gateway: GatewayDouble) -> list[mysql_binlog_pb2.TableEvent]:
    return [event for cut in gateway.source("shop").committed for event in cut.events]


def kinds(gateway: GatewayDouble) -> list[str]:
    return [TableEvent.Kind.Name(event.kind) for event in events(gateway)]


def run_step(written: Written, step: Step) -> None:
    written.database.run(*step.statements)
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
                for _ in range(4):
                    if steps:
                        run_step(written, steps.pop(0))
                if not steps:
                    expect(gateway, written)
                else:
                    before = len(gateway.source("shop").committed)
                    gateway.wait(lambda before=before: len(gateway.source("shop").committed) > before)
                    time.sleep(dice.random() * 2)
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
