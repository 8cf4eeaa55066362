"""From a statement in a PostgreSQL server to a row in the lake, through every process of the product."""

from collections.abc import Iterator

import pytest

from tests.e2e import postgresql_types
from tests.e2e.postgresql_lake import DATABASE, agent, changelog, may_publish, wait_until_equal
from tests.e2e.verified import wait_until_verified
from tests.postgres import SourceServer, source_server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark


#: the oldest that agents read, this machine's own, and the newest ones
RELEASES = ("14", "", "17", "18")


@pytest.fixture(scope="module", params=RELEASES, ids=[f"PostgreSQL{release and f'-{release}'}" for release in RELEASES])
def server(request: pytest.FixtureRequest) -> Iterator[SourceServer]:
    with source_server(request.param) as running:
        running.create_replication_user()
        yield running


@pytest.fixture
def shop(server: SourceServer) -> SourceServer:
    server.renew_database()
    return server


def test_rows_when_inserted_updated_and_deleted_then_lake_equals_source(shop: SourceServer, running: Stack) -> None:
    shop.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, note text, paid numeric(10,2))",
        "INSERT INTO orders SELECT n, 'name ' || n, NULL, n / 4.0 FROM generate_series(1, 100) AS n",
        database=DATABASE,
    )
    may_publish(shop, "orders")
    source = f"pgrows{shop.release}"
    with agent(running, source, {source: shop}):
        running.start_sync(source, "public", "orders", "dump")
        running.wait_until_streaming(source, "public", "orders")
        shop.run(
            "INSERT INTO orders VALUES (1000, 'large', repeat('x', 100000), 1)",
            "UPDATE orders SET name = 'changed' WHERE id % 3 = 0 OR id = 1000",
            "UPDATE orders SET id = -id WHERE id % 5 = 0",
            "DELETE FROM orders WHERE id % 7 = 0",
            database=DATABASE,
        )
        wait_until_equal(running, source, shop, "orders")
    rows = changelog(running, source, "orders")
    kinds = {row["_change_type"] for row in rows}
    assert kinds == {"snapshot", "insert", "update_preimage", "update_postimage", "delete"}
    wait_for("no slot is lost", lambda: shop.run("SELECT wal_status = 'reserved' FROM pg_replication_slots")[0][0])


@pytest.mark.parametrize("start", ["dump", "now"])
def test_every_type_when_dumped_and_changed_then_lake_equals_source(
    shop: SourceServer, running: Stack, start: str
) -> None:
    source = f"pgtypes{shop.release}-{start}"
    if start == "dump":
        postgresql_types.create(shop, DATABASE)
        may_publish(shop, "every_type")
    else:
        postgresql_types.create(shop, DATABASE)
        may_publish(shop, "every_type")
        shop.run("TRUNCATE every_type", database=DATABASE)
    with agent(running, source, {source: shop}):
        running.start_sync(source, "public", "every_type", start)
        if start == "now":
            wait_for("its start", lambda: running.table(source, "public", "every_type")["state"] == "streaming")
            shop.run(*postgresql_types.first_rows("every_type"), database=DATABASE)
        else:
            running.wait_until_streaming(source, "public", "every_type")
            wait_until_equal(running, source, shop, "every_type")
        postgresql_types.change(shop, DATABASE)
        wait_until_equal(running, source, shop, "every_type")
        if start == "dump":
            wait_until_verified(running, source, "public", "every_type")


def test_columns_when_their_names_differ_in_case_alone_then_the_lake_has_each(
    shop: SourceServer, running: Stack
) -> None:
    shop.run(
        'CREATE TABLE "Odd Names" ("Id" int, id int, "ID" text, "select" int, "a ""quoted"" one" text, "_gsn" int,'
        ' PRIMARY KEY ("Id", id))',
        """INSERT INTO "Odd Names" VALUES (1, 10, 'x', 2, 'q', 3), (1, 11, 'y', 3, 'r', 4)""",
        database=DATABASE,
    )
    may_publish(shop, '"Odd Names"')
    source = f"pgnames{shop.release}"
    with agent(running, source, {source: shop}):
        running.start_sync(source, "public", "Odd Names", "dump")
        running.wait_until_streaming(source, "public", "Odd Names")
        shop.run(
            """UPDATE "Odd Names" SET "ID" = 'changed' WHERE id = 10""",
            """UPDATE "Odd Names" SET id = 12 WHERE id = 11""",
            """INSERT INTO "Odd Names" VALUES (2, 10, 'z', NULL, NULL, NULL)""",
            database=DATABASE,
        )
        wait_until_equal(running, source, shop, "Odd Names")


@pytest.mark.long
def test_definitions_when_changed_with_and_without_rows_then_lake_equals_source(
    shop: SourceServer, running: Stack
) -> None:
    rows = "INSERT INTO {} (id, name) SELECT n, 'row ' || n FROM generate_series({}, {}) AS n"
    shop.run(
        "CREATE TABLE quiet (id int PRIMARY KEY, name text, note text)",
        "CREATE TABLE busy (id int PRIMARY KEY, name text, note text)",
        *(rows.format(table, 1, 50) for table in ("quiet", "busy")),
        database=DATABASE,
    )
    may_publish(shop, "quiet", "busy")
    changes = (
        "ADD COLUMN paid numeric(10,2) DEFAULT 1.50",
        "RENAME note TO remark",
        "ALTER COLUMN id TYPE bigint",
        "ALTER COLUMN paid TYPE numeric(12,2)",
        "ALTER COLUMN paid TYPE text USING paid::text || ' EUR'",
        "ADD COLUMN at timestamptz DEFAULT clock_timestamp()",
        "DROP COLUMN remark, ADD COLUMN remark int",
        "DROP COLUMN at",
    )
    source = f"pgddl{shop.release}"
    with agent(running, source, {source: shop}):
        for table in ("quiet", "busy"):
            running.start_sync(source, "public", table, "dump")
        running.wait_until_streaming(source, "public", "quiet", "busy")
        for at, change in enumerate(changes, start=1):
            shop.run(
                f"ALTER TABLE quiet {change}",
                f"ALTER TABLE busy {change}",
                rows.format("busy", at * 100, at * 100 + 10),
                f"UPDATE busy SET name = 'changed {at}' WHERE id % {at + 1} = 0",
                database=DATABASE,
            )
            if at % 3 == 0:
                wait_until_equal(running, source, shop, "quiet", "busy")
        wait_until_equal(running, source, shop, "quiet", "busy")
        running.wait_until_streaming(source, "public", "quiet", "busy")
        shop.run(
            "TRUNCATE busy", "INSERT INTO busy (id, name) VALUES (1, 'behind')", "DROP TABLE quiet", database=DATABASE
        )
        shop.run(
            "CREATE TABLE quiet (id int PRIMARY KEY, other text)",
            "INSERT INTO quiet VALUES (1, 'new')",
            database=DATABASE,
        )
        may_publish(shop, "quiet")
        wait_until_equal(running, source, shop, "busy", "quiet")


@pytest.mark.long
def test_columns_when_added_while_the_server_leaves_out_ignored_ones_then_lake_equals_source(
    shop: SourceServer, running: Stack
) -> None:
    if shop.version < 150000:
        pytest.skip("publications have column lists from version 15 on")
    shop.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text, secret text)", database=DATABASE)
    may_publish(shop, "orders")
    filters = {"filtered_by": "server", "filter": {"public.orders": {"ignored_columns": ["secret"]}}}
    source = f"pglists{shop.release}"
    with agent(running, source, {source: shop}, **filters):
        running.start_sync(source, "public", "orders", "dump")
        running.wait_until_streaming(source, "public", "orders")
        for number in range(3):
            shop.run(
                f"ALTER TABLE orders ADD COLUMN more{number} int DEFAULT 5",
                f"INSERT INTO orders (id, secret, more{number}) SELECT n, 'kept', n FROM generate_series"
                f"({number * 100}, {number * 100 + 49}) AS n",
                f"UPDATE orders SET more{number} = 7 WHERE id % 3 = 0",
                database=DATABASE,
            )
            wait_until_equal(running, source, shop, "orders", ignored=["secret"])
    assert all("secret" not in row for row in changelog(running, source, "orders"))
