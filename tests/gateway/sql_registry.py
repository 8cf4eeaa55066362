"""The real registry over an SQLite file, with tables of a source wanted."""

from pathlib import Path

from sqlalchemy import Connection, select

from controlplane_api.database import Database, open_database
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.dumps import start_dumps
from controlplane_api.models import Source, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables
from gateway.registry import AgentSeen, SourceKey, SourceSeen, TableSeen
from tests import compiled_statements
from tests.controlplane_api import facts

compiled_statements.share()


def open_registry(file: Path) -> tuple[Database, SqlRegistry]:
    database = open_database(f"sqlite:///{file}")
    return database, SqlRegistry(database)


def want(database: Database, key: SourceKey, *tables: str) -> None:
    """Start these tables' syncs, as a user does."""
    registry = SqlRegistry(database)
    seen = SourceSeen(key.source, "mysql", "9.7.0", "db:3306", "00ff")
    registry.record_agent(AgentSeen(key.tenant, "agent-1", "none", "0.1.0", "db", (seen,), 1))
    cards = [TableSeen("shop", table, "InnoDB", "utf8mb4_bin", None, None, (), (), denied=False) for table in tables]
    facts.record_cartography(registry, key, "mysql", "9.7.0", "uuid", cards, 1)
    with database.write() as connection:
        outcomes = start_tables(connection, _source_id(connection, key), None, Start(StartKind.OLDEST))
    assert not [outcome.refused for outcome in outcomes if outcome.refused]


def want_dump(database: Database, key: SourceKey, table: str) -> str:
    """Dump a table that is wanted, as a user does; the dump's UUID."""
    with database.write() as connection:
        (outcome,) = start_dumps(connection, _source_id(connection, key), [("shop", table)], DumpOptions())
    assert outcome.refused is None
    return outcome.dump


def _source_id(connection: Connection, key: SourceKey) -> int:
    statement = select(Source.id).join_from(Source, Tenant).where(Tenant.name == key.tenant, Source.name == key.source)
    return connection.execute(statement).scalar_one()
