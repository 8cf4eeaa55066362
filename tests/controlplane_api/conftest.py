"""Databases for the control plane's tests: each test that asks for `database_url` runs once on each kind."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.http_server import server_of

from controlplane_api.api.app import Access, create_app
from controlplane_api.database import Database, open_database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests import compiled_statements, databases
from tests.postgres import PostgreSQL, postgresql
from tests.stack import wait_for

compiled_statements.share()


@pytest.fixture(autouse=True)
def fresh_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What agents have said at `facts.fresh_us` is of now, however long a test takes."""
    for constant in ("presence.PRESENCE_SECONDS", "source_queries.HEALTH_SECONDS", "queries.REFUSED_SECONDS"):
        monkeypatch.setattr(f"controlplane_api.api.{constant}", 2 * 3_600)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgreSQL) -> str:
    return databases.postgresql_template(postgres)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return databases.sqlite_template(tmp_path_factory.mktemp("template"))


@pytest.fixture(params=databases.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Of the databases: each test runs on both. Those of a browser or of a whole process say which one they need."""
    return str(request.param)


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    postgres: PostgreSQL = request.getfixturevalue("postgres")
    return postgres.fresh_database()


@pytest.fixture
def fresh_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> databases.Fresh:
    """Makes URLs of databases of the newest revision without a row."""
    if kind == "sqlite":
        return databases.sqlite_copies(request.getfixturevalue("sqlite_template"), tmp_path)
    return databases.postgresql_copies(
        request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")
    )


@pytest.fixture
def database_url(fresh_url: databases.Fresh) -> str:
    return fresh_url()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def registry(database: Database) -> SqlRegistry:
    return SqlRegistry(database)


@contextmanager
def serving(
    database: Database,
    port: int = 0,
    access: Access = Access(anonymous=True),  # noqa: B008
    trusted_proxies: Sequence[str] = (),
) -> Iterator[str]:
    """The API over this database on this port, else a free one; its URL. Unless told otherwise it asks nobody."""
    server = server_of(create_app(database, access), port, trusted_proxies=trusted_proxies)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the API to listen", lambda: server.started or None, every=0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
