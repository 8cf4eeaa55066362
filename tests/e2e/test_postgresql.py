"""From a statement in a PostgreSQL server to a row in the lake, through every process of the product."""

from collections.abc import Iterator

import pytest

from tests.e2e.postgresql_lake import DATABASE, agent, changelog, may_publish, wait_until_equal
from tests.postgres import SourceServer, source_server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[SourceServer]:
    with source_server() as running:
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
    with agent(running, "pg-rows", {"pgrows": shop}):
        running.start_sync("pgrows", "public", "orders", "dump")
        running.wait_until_streaming("pgrows", "public", "orders")
        shop.run(
            "INSERT INTO orders VALUES (1000, 'large', repeat('x', 100000), 1)",
            "UPDATE orders SET name = 'changed' WHERE id % 3 = 0 OR id = 1000",
            "UPDATE orders SET id = -id WHERE id % 5 = 0",
            "DELETE FROM orders WHERE id % 7 = 0",
            database=DATABASE,
        )
        wait_until_equal(running, "pgrows", shop, "orders")
    rows = changelog(running, "pgrows", "orders")
    kinds = {row["_change_type"] for row in rows}
    assert kinds == {"snapshot", "insert", "update_preimage", "update_postimage", "delete"}
    wait_for("no slot is lost", lambda: shop.run("SELECT wal_status = 'reserved' FROM pg_replication_slots")[0][0])
