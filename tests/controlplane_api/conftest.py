"""Databases for the control plane's tests: each test that asks for `database_url` runs once on each kind."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from controlplane_api.app import create_app
from controlplane_api.database import Database, open_database
from controlplane_api.registry import SqlRegistry
from tests.postgres import PostgreSQL, postgresql
from tests.stack import wait_for


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


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


@contextmanager
def serving(database: Database) -> Iterator[str]:
    """The API over this database on a free port; its URL."""
    server = uvicorn.Server(uvicorn.Config(create_app(database), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the API to listen", lambda: server.started or None, 30, every=0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Callable[[], str]:
    """Makes URLs of further empty databases of the same kind."""
    if database_url.startswith("sqlite"):
        return lambda: f"sqlite:///{tmp_path}/fresh.db"
    return request.getfixturevalue("postgres").fresh_database
