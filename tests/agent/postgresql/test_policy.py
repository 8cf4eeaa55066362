"""A host's policy over a PostgreSQL source: partitions that it denies, and columns, whatever statement comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.gateway_double import GatewayDouble
from tests.agent.policed import Host, agent_with
from tests.agent.postgresql.sources import SOURCE, source
from tests.agent.postgresql.streaming import begin, run, stopped
from tests.agent.running import write_config
from tests.postgres import SourceServer

ORDERS = ("public", "orders")
POLICY = """
default: closed
databases: {public: {orders: {columns: [id, name]}, canary_denied: denied}}
"""


@contextmanager
def agent(folder: Path, gateway: GatewayDouble, server: SourceServer) -> Iterator[Host]:
    with agent_with(write_config(folder, gateway.address, {SOURCE: source(server)}), POLICY) as host:
        yield host


def test_partition_when_the_policy_denies_it_then_no_row_leaves_by_its_table_whenever_it_is_attached(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    of_it = "PARTITION OF orders FOR VALUES"
    run(
        postgres,
        "GRANT CREATE ON DATABASE shop TO menura",
        "CREATE TABLE orders (id int PRIMARY KEY, name text, canary_pin text) PARTITION BY RANGE (id)",
        f"CREATE TABLE orders_1 {of_it} FROM (0) TO (1000)",
        "CREATE TABLE canary_denied (id int PRIMARY KEY, name text, canary_pin text)",
        "ALTER TABLE orders OWNER TO menura",
        "INSERT INTO orders VALUES (1, 'first', 'canary-value')",
    )
    with agent(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders VALUES (2, 'second', 'canary-value')")
        gateway.wait(lambda: [row["id"] for row in gateway.rows(SOURCE, ORDERS)] == [2])
        gateway.wait(lambda: gateway.source(SOURCE).existing() == {ORDERS})
        # in one transaction: the stream itself has to see it, before its rows
        run(
            postgres,
            "BEGIN; ALTER TABLE orders ATTACH PARTITION canary_denied FOR VALUES FROM (1000) TO (2000);"
            " INSERT INTO orders VALUES (3, 'third', ''), (1001, 'canary-row', ''); COMMIT",
        )
        gateway.wait(lambda: stopped(gateway, ORDERS))
        gateway.wait(lambda: gateway.source(SOURCE).existing() == set())
        run(postgres, "INSERT INTO orders VALUES (1002, 'canary-row', '')")
    assert stopped(gateway, ORDERS)[0].error.code == "POLICY_DENIED"
    rows = gateway.rows(SOURCE, ORDERS)
    assert [set(row) & {"id", "name", "canary_pin"} for row in rows] == [{"id", "name"}] * len(rows)
    assert not any("canary" in str(row) for row in rows)
    assert not any(b"canary" in message for message in gateway.messages)
