"""Servers that tests of a PostgreSQL source stand on."""

from collections.abc import Iterator

import pytest

from tests.postgres import NEWEST, SourceServer, source_server


@pytest.fixture(scope="module")
def shared_server() -> Iterator[SourceServer]:
    """One for all tests of a module, with the user `menura`; a test leaves none of its slots there."""
    with source_server() as running:
        running.create_replication_user()
        yield running


@pytest.fixture
def postgres(shared_server: SourceServer) -> Iterator[SourceServer]:
    """The module's, with a database `shop` that is empty."""
    shared_server.renew_database()
    yield shared_server
    shared_server.drop_slots()


@pytest.fixture(scope="module")
def newest() -> Iterator[SourceServer]:
    """Of the newest release, with the user `menura`; who leaves things in its database `shop` makes it anew."""
    with source_server(NEWEST) as running:
        running.create_replication_user()
        yield running
