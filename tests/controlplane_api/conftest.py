"""Databases for the control plane's tests: each test that asks for `database_url` runs once on each kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane_api.database import Database, open_database
from controlplane_api.registry import SqlRegistry
from tests.postgres import PostgreSQL, postgresql
from tests.servers import ServerMissing


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    try:
        with postgresql() as running:
            yield running
    except ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/control.db"
    return request.getfixturevalue("postgres").fresh_database()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def registry(database: Database) -> SqlRegistry:
    return SqlRegistry(database)


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Callable[[], str]:
    """Makes URLs of further empty databases of the same kind."""
    if database_url.startswith("sqlite"):
        return lambda: f"sqlite:///{tmp_path}/fresh.db"
    return request.getfixturevalue("postgres").fresh_database
