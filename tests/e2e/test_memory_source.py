"""A source in memory from end to end, under kill -9 of gateway and sink: none of them knows what is not MySQL's."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from spark_sink.work import TableId
from tests.agent.dumping import agent_inside
from tests.agent.memory import COLUMNS, TRUTHS, Writers, config, create, installed, order
from tests.agent.policed import agent_with
from tests.e2e.lake import rows_in_lake
from tests.memory_source.database import Change, Column, Definition, MemoryDatabase, Table
from tests.remedies import commands
from tests.stack import Stack, stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill]

KILLS = 3
KEYED, JOINED, UNKEYED, ALTERED = (("shop", name) for name in ("keyed", "joined", "unkeyed", "altered"))


def in_lake(lake: Path, table: Table, names: list[str]) -> list[str]:
    found = rows_in_lake(lake, TableId("acme", "shop", *table))
    return sorted(repr([row.get(name) for name in names]) for row in found)


def in_source(database: MemoryDatabase, table: Table, names: list[str]) -> list[str]:
    return sorted(repr([row[name] for name in names]) for row in database.tables[table].rows)


def test_dump_when_its_source_has_no_snapshots_then_the_commands_of_its_remedy_bring_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack") as running:
        database = MemoryDatabase("shop")
        create(database, KEYED, rows=5)
        with agent_inside(config(tmp_path, f"127.0.0.1:{running.gateway_port}", snapshots="none")):
            running.start_sync("shop", *KEYED, "now")
            (dump,) = running.post(
                "/api/v1/tenants/acme/sources/shop/dumps", {"tables": [{"database": "shop", "table": "keyed"}]}
            )["tables"]
            path = f"/api/v1/tenants/acme/sources/shop/dumps/{dump['dump']}"
            wait_for("its failure", lambda: running.get(path)["state"] == "failed")
            for command in commands(running.get(path)["problem"]["message"]):
                running.command(*command)
            names = [column.name for column in COLUMNS]
            expected = in_source(database, KEYED, names)
            wait_for("the rows", lambda: in_lake(running.lake, KEYED, names) == expected, 600)


def test_table_when_its_hosts_policy_comes_to_deny_it_then_its_remedy_brings_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what the control plane shows of it meanwhile."""
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack") as running:
        database = MemoryDatabase("shop")
        create(database, KEYED, rows=5)
        names = [column.name for column in COLUMNS]
        with agent_with(config(tmp_path, f"127.0.0.1:{running.gateway_port}"), "default: open\n") as host:
            running.start_sync("shop", *KEYED, "dump")
            wait_for("the rows", lambda: in_lake(running.lake, KEYED, names) == in_source(database, KEYED, names), 600)
            host.policy("default: open\ndatabases: {shop: {keyed: denied}}\n")
            code, message = wait_for("its stop", lambda: _denied(running))
            assert code == "POLICY_DENIED" and "the database's owner may name it" in message.lower()
            wait_for("it to be known no longer", lambda: running.table("shop", *KEYED)["gone"])
            database.commit(Change(KEYED, None, order(99, "while it was denied")))
            host.policy("default: open\n")
            wait_for("it to be known again", lambda: not running.table("shop", *KEYED)["gone"])
            for command in commands(message):
                running.command(*command)
            expected = in_source(database, KEYED, names)
            wait_for("all rows", lambda: in_lake(running.lake, KEYED, names) == expected, 600)


def _denied(running: Stack) -> tuple[str, str] | None:
    problem = running.table("shop", *KEYED).get("problem")
    return (problem["code"], problem["message"]) if problem and problem["code"] == "POLICY_DENIED" else None


def test_source_when_it_is_no_database_server_then_the_lake_is_equal_to_it_after_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = (*COLUMNS, Column("note", "u"), Column("sent", "b", earlier=True))
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack") as running:
        database = MemoryDatabase("shop")
        for table in (KEYED, JOINED, ALTERED):
            create(database, table, rows=2000)
        create(
            database, UNKEYED, rows=200, columns=tuple(Column(column.name, column.arrow_format) for column in COLUMNS)
        )
        agent = config(tmp_path, f"127.0.0.1:{running.gateway_port}")
        with ExitStack() as writing:
            for seed, table in enumerate((KEYED, JOINED, UNKEYED)):
                writing.enter_context(Writers(database, table, seed, 8000))
            with agent_inside(agent):
                for table, start in ((KEYED, "dump"), (UNKEYED, "dump"), (ALTERED, "oldest")):
                    running.start_sync("shop", *table, start)
                for _ in range(KILLS):
                    landed = set(running.landing.rglob("*.parquet"))
                    running.gateway.kill()
                    running.gateway.start()
                    wait_for("more to land", lambda was=landed: set(running.landing.rglob("*.parquet")) - was)
                running.sink.kill()
                running.start_sync("shop", *JOINED, "dump")
            running.sink.start()
            with agent_inside(agent):
                database.commit(Definition(ALTERED, changes_pb2.TableEvent.ALTERED, wider))
                later = [order(number, "later") | {"note": "x", "sent": TRUTHS[number % 3]} for number in range(3)]
                database.commit(*(Change(ALTERED, None, row) for row in later))
                running.wait_until_streaming("shop", "shop", *(table[1] for table in (KEYED, JOINED, UNKEYED, ALTERED)))
        with agent_inside(agent):
            for table in (KEYED, JOINED, UNKEYED, ALTERED):
                names = [column.name for column in database.tables[table].columns]
                expected = in_source(database, table, names)
                wait_for(
                    f"{table[1]} to be equal",
                    lambda of=table, want=expected, by=names: in_lake(running.lake, of, by) == want,
                    600,
                )
            assert running.source("shop")["flavor"] == "memory"
            running.command("verify", "schedule", "shop", "--every", "1d", "--tables", "shop.keyed")
            proof = "/api/v1/tenants/acme/sources/shop/tables/shop/keyed/proof"
            wait_for("its turn to prove it", lambda: running.get(proof)["coverage"] == "proven", 600)
