"""A running server as a source, of either kind: what the demo and `make churn` ask of one.

Its agent, its tables beside the lake's, statements. What a kind's SQL and errors are is not here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.compare import Comparison
from tests.e2e import lake, postgresql_lake
from tests.postgres import SourceServer, source_server
from tests.servers import Flavor, Server, server
from tests.stack import Process, Stack

#: who owns a PostgreSQL's tables; the agent's user is a member
OWNER = "shop_owner"


class LiveSource(Protocol):
    #: in which its tables are, as API and lake have it: a database, or a schema
    namespace: str

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements one by one, each in its transaction; the rows of the last."""

    def connect(self, **options: object) -> Any:
        """A new autocommitting connection of the kind's driver, as who owns the tables."""

    def agent(self, running: Stack, name: str, source: str, **settings: object) -> Process:
        """Not started; `settings` are further entries of the source."""

    def compare(self, running: Stack, source: str, table: str, ignored: Iterable[str] = ()) -> Comparison:
        """The table beside its current state in the lake."""


@dataclass(frozen=True)
class MysqlSource:
    server: Server
    namespace: str

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        return self.server.run(*statements, database=self.namespace)

    def connect(self, **options: object) -> Any:
        return self.server.connect(database=self.namespace, **options)

    def agent(self, running: Stack, name: str, source: str, **settings: object) -> Process:
        return running.agent(name, {source: self.server}, **settings)

    def compare(self, running: Stack, source: str, table: str, ignored: Iterable[str] = ()) -> Comparison:
        return lake.compare_table(running.lake, running.tenant, source, self.server, self.namespace, table, ignored)


@dataclass(frozen=True)
class PostgresqlSource:
    server: SourceServer
    namespace: str = postgresql_lake.SCHEMA

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def connect(self, **options: object) -> Any:
        return self.server.connect(postgresql_lake.DATABASE, options=f"-c role={OWNER}", **options)

    def agent(self, running: Stack, name: str, source: str, **settings: object) -> Process:
        return postgresql_lake.agent(running, name, {source: self.server}, **settings)

    def compare(self, running: Stack, source: str, table: str, ignored: Iterable[str] = ()) -> Comparison:
        return postgresql_lake.compare_table(running, source, self.server, table, self.namespace, ignored)


@contextmanager
def mysql_source(
    flavor: Flavor, folder: Path, namespace: str, *, release: str = "", **settings: str
) -> Iterator[MysqlSource]:
    """A fresh server with an empty database, and the agent's user."""
    with server(flavor, folder, release=release, **settings) as running:
        running.create_replication_user()
        running.run(f"CREATE DATABASE {namespace} CHARACTER SET utf8mb4")
        yield MysqlSource(running, namespace)


@contextmanager
def postgresql_source(release: str = "", **settings: str) -> Iterator[PostgresqlSource]:
    """A fresh server with an empty schema, its owner, and the agent's user, who may publish the owner's tables."""
    with source_server(release, **settings) as running:
        running.create_replication_user()
        running.run(
            f"CREATE ROLE {OWNER}",
            f"GRANT {OWNER} TO menura",
            f"GRANT CREATE ON DATABASE {postgresql_lake.DATABASE} TO {OWNER}",
            f"GRANT ALL ON SCHEMA {postgresql_lake.SCHEMA} TO {OWNER}",
            database=postgresql_lake.DATABASE,
        )
        yield PostgresqlSource(running)
