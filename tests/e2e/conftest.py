"""One stack with its sink, and one server of each kind, for all tests that do not kill them."""

from collections.abc import Iterator

import pytest

from tests.servers import Flavor, Server, server
from tests.stack import Stack, stack


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Flavor, Server]]:
    folder = tmp_path_factory.mktemp("servers")
    with server("mysql", folder / "mysql") as mysql, server("mariadb", folder / "mariadb") as mariadb:
        for each in (mysql, mariadb):
            each.create_replication_user()
        yield {"mysql": mysql, "mariadb": mariadb}


#: far less than the default, so that every test also runs into back pressure
CREDIT_WINDOW_BYTES = 1 << 20


#: of tables that are called like their policies, in a database of their own
SCHEMA_CHANGES = [
    f"--schema-changes=*/policies.{policy}={policy}" for policy in ("try_evolve", "lenient", "ignore", "exception")
]


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(
        tmp_path_factory.mktemp("stack"), credit_window_bytes=CREDIT_WINDOW_BYTES, sink_options=SCHEMA_CHANGES
    ) as started:
        yield started
