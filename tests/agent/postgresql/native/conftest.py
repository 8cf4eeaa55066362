from collections.abc import Iterator

import pytest

from tests.postgres import SourceServer, source_server


@pytest.fixture(scope="package")
def package_server() -> Iterator[SourceServer]:
    """One for all tests of this folder."""
    with source_server() as running:
        running.create_replication_user()
        yield running


@pytest.fixture
def server(package_server: SourceServer) -> SourceServer:
    """With a database `shop` that is empty."""
    package_server.renew_database()
    return package_server
