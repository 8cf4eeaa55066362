"""What exists on a server, as it is reported."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from menura.v1 import catalog_pb2
from pymysql.connections import Connection

from agent.config_entries import Secret
from agent.filter import Filter, Policy
from agent.snapshot import cartography
from agent.snapshot import plugin as catalog_plugin
from agent.snapshot.cartography import Sent, Telling
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.server.cartography import cards, head, names_digest
from agent.sources.mysql.server.connection import connect, facts_of
from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, write_config
from tests.servers import FLAVORS, Server, server


@pytest.fixture(scope="module", params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Estimates change by an ALTER alone.
    settings = {"innodb_flush_log_at_trx_commit": "0", "innodb_stats_auto_recalc": "0"}
    with server(request.param, tmp_path_factory.mktemp(request.param), **settings) as running:
        running.create_replication_user()
        running.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.orders (id INT UNSIGNED PRIMARY KEY, note VARCHAR(20) NOT NULL DEFAULT 'x%y',"
            " price DECIMAL(10,2), twice DECIMAL(11,2) GENERATED ALWAYS AS (price * 2) STORED,"
            " UNIQUE KEY by_note (note, price), KEY by_price (price)) ENGINE=InnoDB",
            "CREATE TABLE shop.`odd name` (a INT) ENGINE=MyISAM",
            "CREATE TABLE shop.hidden (id INT PRIMARY KEY, order_id INT UNSIGNED, note VARCHAR(20),"
            " price DECIMAL(10,2),"
            " CONSTRAINT of_order FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE,"
            " CONSTRAINT of_note FOREIGN KEY (note, price) REFERENCES orders (note, price))",
            "CREATE VIEW shop.v AS SELECT * FROM shop.orders",
            "INSERT INTO shop.orders (id, note, price) VALUES (1, 'a', 1), (2, 'b', 2)",
            "CREATE TABLE shop.kept (id INT PRIMARY KEY)"
            + (" WITH SYSTEM VERSIONING" if running.flavor == "mariadb" else ""),
        )
        yield running


def read(database: Server) -> list[catalog_pb2.Cartography]:
    config = ServerConfig(database.host, "menura", database.port, Secret("menura-secret"))
    filter_ = Filter(Policy.ACCEPT, {"hidden": None, "orders": ("NOTE",)}, identifiers=IDENTIFIERS)
    source = MysqlConfig(name="shop", kind="mysql", client=config, binlog=config, filter=filter_)
    with closing(connect(config, "shop")) as connection:
        facts = facts_of(connection, "shop")
        return list(Telling(head(source, facts), cards(connection, source, facts), Sent()).parts())


def test_cartography_when_read_then_describes_every_table(database: Server) -> None:
    (part,) = read(database)
    assert part.last
    assert (part.source, part.flavor) == ("shop", database.flavor)
    cards = {(card.table.database, card.table.table): card for card in part.tables}
    assert set(cards) == {("shop", "orders"), ("shop", "odd name"), ("shop", "hidden"), ("shop", "kept")}
    orders = cards["shop", "orders"]
    assert [(c.name, c.nullable, c.ignored, c.generated) for c in orders.columns] == [
        ("id", False, False, False),
        ("note", False, True, False),
        ("price", True, False, False),
        ("twice", True, False, True),
    ]
    assert orders.columns[0].column_type.replace("(10)", "") == "int unsigned"
    assert orders.columns[1].charset == "utf8mb4"
    assert {(k.name, k.unique, tuple(k.columns)) for k in orders.keys} == {
        ("PRIMARY", True, ("id",)),
        ("by_note", True, ("note", "price")),
        ("by_price", False, ("price",)),
    }
    assert (orders.engine, cards["shop", "odd name"].engine) == ("InnoDB", "MyISAM")
    assert orders.HasField("estimated_rows")
    assert orders.size_bytes > 0
    assert [
        (key.name, list(key.columns), key.parent.database, key.parent.table, list(key.parent_columns))
        for key in cards["shop", "hidden"].foreign_keys
    ] == [
        ("of_note", ["note", "price"], "shop", "orders", ["note", "price"]),
        ("of_order", ["order_id"], "shop", "orders", ["id"]),
    ]
    assert not orders.foreign_keys
    assert cards["shop", "hidden"].denied
    assert not orders.denied


def test_cartography_when_tables_come_or_go_then_is_sent_again_though_nobody_asked(
    database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_plugin, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(catalog_plugin, "_RESTS_PER_LOOK", 1)
    gateway = GatewayDouble()
    record = gateway.source("shop")
    sent = record.cartography

    def names() -> set[str]:
        return {table for database, table in record.existing() if database == "brief"}

    database.run("CREATE DATABASE brief")
    with agent_inside(write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})):
        for statement, expected in (
            ("CREATE TABLE brief.one (id INT PRIMARY KEY)", {"one"}),
            ("RENAME TABLE brief.one TO brief.two", {"two"}),
            ("DROP DATABASE brief", set()),
        ):
            gateway.wait(lambda: sent)
            before = len(sent)
            database.run(statement)
            gateway.wait(lambda before=before, expected=expected: len(sent) > before and names() == expected)
            assert {card.table.database for part in sent[before:] for card in part.tables} <= {"brief"}
            assert sent[-1].base == sent[before - 1].digest
    gateway.stop()


def test_cartography_when_the_log_says_that_a_column_changed_then_the_table_is_told_again_though_nobody_asked(
    database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_plugin, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(catalog_plugin, "_RESTS_PER_LOOK", 1)
    monkeypatch.setattr(catalog_plugin, "_RESTS_PER_READING", 1)
    gateway = GatewayDouble()
    record = gateway.source("shop")
    sent = record.cartography
    database.run("CREATE DATABASE altered", "CREATE TABLE altered.one (id INT PRIMARY KEY, note VARCHAR(20))")

    def columns(parts: list[catalog_pb2.Cartography]) -> list[str]:
        """Of the table, as it was told last."""
        found = [card for part in parts for card in part.tables if card.table.database == "altered"]
        return [column.name for column in found[-1].columns] if found else []

    with agent_inside(write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})):
        gateway.wait(lambda: columns(sent) == ["id", "note"])
        gateway.sync("shop", ("altered", "one"), now=True)
        gateway.wait(lambda: any(cut.started for cut in record.committed))
        for statement, expected in (
            ("ALTER TABLE altered.one CHANGE note words VARCHAR(20)", ["id", "words"]),
            ("ALTER TABLE altered.one ADD more INT", ["id", "words", "more"]),
        ):
            before = len(sent)
            database.run(statement)
            gateway.wait(lambda before=before, expected=expected: columns(sent[before:]) == expected)
            assert {card.table.database for part in sent[before:] for card in part.tables} == {"altered"}
    gateway.stop()
    database.run("DROP DATABASE altered")


def test_cartography_when_the_gateway_names_the_one_that_it_has_then_differences_are_told(
    database: Server, tmp_path: Path
) -> None:
    gateway = GatewayDouble()
    record = gateway.source("shop")

    def told_after(statement: str, known: bytes) -> list[catalog_pb2.Cartography]:
        before = len(record.cartography)
        database.run(statement)
        gateway.ask_cartography("shop", known)
        gateway.wait(lambda: record.cartography[before:] and record.cartography[-1].last)
        return record.cartography[before:]

    with agent_inside(write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})):
        gateway.wait(lambda: record.cartography and record.cartography[-1].last)
        assert not record.cartography[-1].base
        whole = record.existing()
        known = record.cartography[-1].digest
        (same,) = told_after("SELECT 1", known)
        assert (same.base, same.digest, len(same.tables), len(same.gone)) == (known, known, 0, 0)
        (other,) = told_after("ALTER TABLE shop.hidden ADD c INT", known)
        assert [card.table.table for card in other.tables] == ["hidden"]
        assert other.base == known != other.digest
        (again,) = told_after("ALTER TABLE shop.hidden DROP c", b"of another gateway")
        assert again.base == b""
        assert {(card.table.database, card.table.table) for card in again.tables} == whole
    gateway.stop()


def test_names_digest_when_only_rows_change_then_stays_the_same(database: Server) -> None:
    with closing(database.connect(autocommit=True)) as connection:
        before = names_digest(connection)
        database.run("UPDATE shop.orders SET price = 3", "ALTER TABLE shop.hidden ADD b INT")
        assert names_digest(connection) == before


def test_cartography_when_there_are_many_tables_then_asks_as_often_as_for_few_and_is_in_parts(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = 100
    monkeypatch.setattr(cartography, "PART_BYTES", 50_000)
    asked: list[object] = []
    query = Connection.query

    def counted(of: Connection, sql: object, unbuffered: bool = False) -> object:
        asked.append(sql)
        return query(of, sql, unbuffered)

    monkeypatch.setattr(Connection, "query", counted)
    read(database)
    few = len(asked)
    assert few
    columns = ", ".join(f"a_rather_long_column_name_{number} INT" for number in range(50))
    database.run(
        "CREATE DATABASE many", *[f"CREATE TABLE many.t{n} (id INT PRIMARY KEY, {columns})" for n in range(tables)]
    )
    asked.clear()
    parts = read(database)
    assert len(asked) == few
    assert sum(len(part.tables) for part in parts) == tables + 4
    assert len(parts) > 3
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert max(part.ByteSize() for part in parts) < 2 * cartography.PART_BYTES
