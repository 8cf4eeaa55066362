"""What exists in a database, as users see it."""

from collections.abc import Iterable
from contextlib import closing

import pytest
from menura.v1 import catalog_pb2

from agent.filter import Filter
from agent.runtime.state import SourceState
from agent.snapshot import cartography
from agent.snapshot.cartography import Sent, Telling
from agent.sources.postgresql.catalog import PostgresqlCatalog
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.server.cartography import names_digest
from agent.sources.postgresql.server.connection import connect
from tests.agent.postgresql.logged import SLOT
from tests.agent.postgresql.sources import config_of, login
from tests.postgres import SourceServer

ACCEPT = Filter(identifiers=IDENTIFIERS)


def catalog_of(server: SourceServer, policy: Filter = ACCEPT) -> PostgresqlCatalog:
    config = config_of(server, policy=policy)
    return PostgresqlCatalog(config, SLOT, SourceState(config), SeenTransactions(), KnownDefinitions())


def look(server: SourceServer, policy: Filter = ACCEPT) -> dict[str, catalog_pb2.TableCard]:
    cards: list[catalog_pb2.TableCard] = []
    catalog_of(server, policy).look(None, lambda _, found: cards.extend(found))
    return {f"{card.table.database}.{card.table.table}": card for card in cards}


def run(server: SourceServer, *statements: str) -> None:
    server.run(*statements, database="shop")


def test_look_when_there_are_tables_then_columns_keys_and_sizes_are_told(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TYPE mood AS ENUM ('a', 'b')",
        'CREATE TABLE "T" (id int, "Id" text, m mood[] NOT NULL, g int GENERATED ALWAYS AS (id) STORED, gone int,'
        ' PRIMARY KEY ("Id", id), UNIQUE (id))',
        'CREATE INDEX by_mood ON "T" (m, lower("Id"))',
        'ALTER TABLE "T" DROP gone',
        """INSERT INTO "T" SELECT i, i::text, '{a}' FROM generate_series(1, 1000) AS i""",
        'ANALYZE "T"',
    )
    (card,) = look(postgres).values()
    assert (card.table.database, card.table.table, card.engine, card.denied) == ("public", "T", "heap", False)
    assert card.estimated_rows == 1000
    ((size,),) = postgres.run("""SELECT pg_total_relation_size('"T"')""", database="shop")
    assert 0 < card.size_bytes <= size
    columns = [(one.name, one.column_type, one.nullable, one.generated, one.ignored) for one in card.columns]
    assert columns == [
        ("id", "integer", False, False, False),
        ("Id", "text", False, False, False),
        ("m", "public.mood[]", False, False, False),
        ("g", "integer", True, True, False),
    ]
    keys = [(key.name, key.unique, tuple(key.columns)) for key in card.keys]
    assert keys == [("T_pkey", True, ("Id", "id")), ("T_id_key", True, ("id",)), ("by_mood", False, ("m",))]
    run(
        postgres,
        "CREATE TABLE child (a int, b text,"
        ' CONSTRAINT of_both FOREIGN KEY (b, a) REFERENCES "T" ("Id", id) ON DELETE CASCADE,'
        ' FOREIGN KEY (a) REFERENCES "T" (id))',
    )
    child = look(postgres)["public.child"]
    assert [
        (key.name, list(key.columns), key.parent.database, key.parent.table, list(key.parent_columns))
        for key in child.foreign_keys
    ] == [
        ("child_a_fkey", ["a"], "public", "T", ["id"]),
        ("of_both", ["b", "a"], "public", "T", ["Id", "id"]),
    ]


def test_look_when_tables_are_of_other_kinds_then_those_that_can_be_synced_are_offered(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (500)",
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (500) TO (5000) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_2_all PARTITION OF parted_2 DEFAULT",
        "INSERT INTO parted SELECT i, repeat('x', 100) FROM generate_series(1, 999) AS i",
        "CREATE TABLE empty_parted (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE half (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE half_1 PARTITION OF half DEFAULT",
        "CREATE VIEW seen AS SELECT 1 AS a",
        "ANALYZE",
    )
    found = look(postgres)
    assert {name: (card.engine, card.denied) for name, card in found.items()} == {
        "public.t": ("heap", False),
        "public.fleeting": ("unlogged", True),
        "public.parted": ("partitioned", False),
        "public.empty_parted": ("partitioned", False),
        "public.half": ("unlogged", True),
    }
    assert found["public.parted"].estimated_rows == 999
    assert found["public.parted"].size_bytes > 100 * 999
    assert (found["public.empty_parted"].estimated_rows, found["public.empty_parted"].size_bytes) == (0, 0)


def test_look_when_nothing_was_analyzed_then_rows_are_not_estimated(postgres: SourceServer) -> None:
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    assert not look(postgres)["public.t"].HasField("estimated_rows")


def test_look_when_the_filter_keeps_back_then_it_is_told(postgres: SourceServer) -> None:
    run(postgres, 'CREATE TABLE t (id int PRIMARY KEY, "Id" int, secret text)', "CREATE TABLE u (id int PRIMARY KEY)")
    found = look(postgres, Filter(rules={"t": ("secret", "Id"), "u": None}, identifiers=IDENTIFIERS))
    assert found["public.u"].denied
    assert not found["public.t"].denied
    assert [one.name for one in found["public.t"].columns if one.ignored] == ["Id", "secret"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE v ()",
        "DROP TABLE u",
        "ALTER TABLE u RENAME TO w",
        "ALTER TABLE u SET SCHEMA other",
        "ALTER TABLE u SET UNLOGGED",
        "ALTER TABLE parted ATTACH PARTITION u DEFAULT",
    ],
)
def test_look_when_tables_come_and_go_then_the_digest_is_another_one(postgres: SourceServer, statement: str) -> None:
    run(
        postgres,
        "CREATE SCHEMA other",
        "CREATE TABLE u (id int NOT NULL)",
        "CREATE TABLE parted (id int NOT NULL) PARTITION BY RANGE (id)",
    )
    catalog = catalog_of(postgres)
    sent: list[catalog_pb2.TableCard] = []

    def send(_: catalog_pb2.Cartography, cards: Iterable[catalog_pb2.TableCard]) -> None:
        sent.extend(cards)

    first = catalog.look(None, send)
    assert sent
    sent.clear()
    run(postgres, "INSERT INTO u VALUES (1)", "CREATE INDEX ON u (id)", "CREATE VIEW seen AS SELECT 1")
    second = catalog.look(first.digest, send)
    assert (second.digest, second.findings, sent) == (first.digest, None, [])
    run(postgres, "DROP VIEW seen", statement)
    assert catalog.look(first.digest, send).digest != first.digest
    assert sent


def test_look_when_there_are_many_tables_then_they_come_in_parts(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cartography, "PART_BYTES", 2_000)
    with postgres.connect("shop") as connection:
        connection.execute(
            "DO $$ BEGIN FOR i IN 1..100 LOOP"
            " EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY)', i); END LOOP; END $$"
        )
    parts: list[catalog_pb2.Cartography] = []
    catalog_of(postgres).look(None, lambda *told: parts.extend(Telling(*told, Sent()).parts()))
    assert len(parts) > 3
    assert sum(len(part.tables) for part in parts) == 100
    assert all(part.ByteSize() < 2_500 and part.flavor == "postgresql" and part.server_identity for part in parts)


def test_look_when_a_statement_holds_a_table_then_it_does_not_wait(postgres: SourceServer) -> None:
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    with postgres.connect("shop", autocommit=False) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert set(look(postgres)) == {"public.t"}


def test_names_when_asked_for_then_it_costs_one_statement(postgres: SourceServer) -> None:
    with closing(connect(login(postgres), "shop")) as connection:
        assert names_digest(connection) == (0, "0")
