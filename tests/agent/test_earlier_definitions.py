"""What the earlier life of a table that begins anew tells of its definition, where statements since hide it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.config_entries import Secret
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.schema_reader import ServerSchemaReader, server_of
from agent.sources.mysql.schema.versions import Unknown, Version
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.server.replication import identity_of
from agent.sources.mysql.server.server_log import ServerLog, natural_position_kind
from tests.servers import FLAVORS, Server, server

T = ("shop", "t")


@pytest.fixture(scope="module", params=FLAVORS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def database(running: Server) -> Server:
    running.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    running.run("CREATE TABLE shop.t (id INT, e ENUM('x','y'))")
    return running


class Ended(Exception):
    """Nobody waits for the stream any more."""


def ended() -> None:
    raise Ended


class Streams:
    """Those of one source, one after the other."""

    def __init__(self, database: Server, history: SchemaHistory) -> None:
        self.at = ServerConfig(database.host, database.user, database.port, Secret(database.password))
        self.history = history
        with closing(connect(self.at, "shop")) as connection:
            self.facts = facts_of(connection, "shop")
            self.reads = server_of(connection, self.facts)
        self.kind = natural_position_kind(self.facts)

    def end(self) -> BinlogPosition:
        with closing(connect(self.at, "shop")) as connection:
            return ServerLog(connection, self.at, "shop", self.facts, self.kind).end()

    def begin(self, position: BinlogPosition, check: Callable[[], None] = lambda: None) -> Version:
        """How the table looks where it begins anew. `check` is called while the log is looked through."""
        replica = identity_of("t", "a", "shop", 0)
        reader = ServerSchemaReader("shop", self.at, self.facts, self.kind, replica, self.reads, check)
        definitions = Definitions("shop", self.reads, self.history, reader)
        definitions.begin(position, {T: position}, [T])
        return definitions.of(T)


def columns(version: Version) -> dict[str, object]:
    assert isinstance(version, TableDefinition), version
    return {column.name: column.type.labels or str(column.type) for column in version.columns}


def test_begin_when_a_statement_since_can_not_be_undone_then_the_earlier_life_tells(
    database: Server, tmp_path: Path
) -> None:
    with closing(SchemaHistory(tmp_path, "shop")) as history:
        streams = Streams(database, history)
        assert columns(streams.begin(streams.end())) == {"id": "int", "e": ("x", "y")}
        # while the table is not streamed, and then behind the snapshot with which it begins
        database.run("ALTER TABLE shop.t MODIFY e ENUM('x','y','z')")
        shown = streams.end()
        database.run("ALTER TABLE shop.t CHANGE e f ENUM('z','y','x')", "ALTER TABLE shop.t ADD g INT")
        assert columns(streams.begin(shown)) == {"id": "int", "e": ("x", "y", "z")}


def test_begin_when_the_earlier_life_does_not_lead_to_what_the_server_shows_then_nobody_knows(
    database: Server, tmp_path: Path
) -> None:
    with closing(SchemaHistory(tmp_path, "shop")) as history:
        streams = Streams(database, history)
        start = streams.end()
        known = streams.begin(start)
        assert isinstance(known, TableDefinition)
        history.record(start, {T: TableDefinition(known.columns[1:], charset=known.charset)})
        database.run("ALTER TABLE shop.t MODIFY e ENUM('y','x')")
        assert isinstance(streams.begin(start), Unknown)


def test_begin_when_it_has_ended_before_it_knew_then_the_next_one_knows_the_earlier_life_too(
    database: Server, tmp_path: Path
) -> None:
    """A stream that ends while it asks the server leaves what a kill leaves: a table that has begun, and nothing known
    of it."""
    with closing(SchemaHistory(tmp_path, "shop")) as history:
        streams = Streams(database, history)
        streams.begin(streams.end())
        shown = streams.end()
        database.run("ALTER TABLE shop.t MODIFY e ENUM('z','y','x')")
        for _ in range(2):
            with pytest.raises(Ended):
                streams.begin(shown, ended)
    with closing(SchemaHistory(tmp_path, "shop")) as reopened:
        assert columns(Streams(database, reopened).begin(shown)) == {"id": "int", "e": ("x", "y")}
        assert columns(Streams(database, reopened).begin(shown)) == {"id": "int", "e": ("x", "y")}
