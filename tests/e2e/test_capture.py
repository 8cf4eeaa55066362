"""From a statement in a real server to a row in the lake, through every process of the product."""

import pytest

from tests.e2e import every_type
from tests.e2e.lake import wait_for_changelog, wait_until_equal
from tests.e2e.verified import wait_until_verified
from tests.oracle import count_changes
from tests.servers import Flavor, Server
from tests.stack import Stack

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_every_type_when_inserted_updated_and_deleted_then_lake_equals_source(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    database = servers[flavor]
    every_type.create(database, flavor)
    every_type.change(database, flavor, first_half=True)
    with running.agent(f"types-{flavor}", {flavor: database}):
        running.start_sync(flavor, every_type.DATABASE, "every_type", "oldest")
        every_type.change(database, flavor, first_half=False)
        tables = ["every_type"]
        wait_until_equal(running.lake, running.tenant, flavor, database, every_type.DATABASE, tables)
        wait_until_verified(running, flavor, every_type.DATABASE, "every_type")
        logged = count_changes(database, every_type.DATABASE)["every_type"]
        wait_for_changelog(running.lake, running.tenant, flavor, every_type.DATABASE, "every_type", logged)


def test_two_tenants_when_sources_have_one_name_then_api_landing_and_lake_stay_apart(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    for tenant, flavor in (("red", "mysql"), ("blue", "mariadb")):
        servers[flavor].run(
            "CREATE DATABASE IF NOT EXISTS same", "CREATE TABLE same.t (id INT PRIMARY KEY, owner VARCHAR(9))"
        )
        servers[flavor].run(f"INSERT INTO same.t VALUES (1, '{tenant}')")
    red = running.agent("one-name", {"shop": servers["mysql"]}, tenant="red")
    blue = running.agent("one-name", {"shop": servers["mariadb"]}, tenant="blue")
    with red, blue:
        for tenant, flavor in (("red", "mysql"), ("blue", "mariadb")):
            running.start_sync("shop", "same", "t", "oldest", tenant=tenant)
            wait_until_equal(running.lake, tenant, "shop", servers[flavor], "same", ["t"])
        for tenant, flavor in (("red", "mysql"), ("blue", "mariadb")):
            sources = running.get(f"/api/v1/tenants/{tenant}/sources")
            assert [source["source"] for source in sources["sources"]] == ["shop"]
            assert [source["flavor"] for source in sources["sources"]] == [flavor]
            landed = list((running.landing / "data" / tenant).rglob("*.parquet"))
            assert landed
            assert all(tenant.encode() in path.read_bytes() for path in landed)
            other = "blue" if tenant == "red" else "red"
            assert not any(other.encode() in path.read_bytes() for path in landed)
