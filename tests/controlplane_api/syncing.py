"""Commands about syncs in tests, and what the database holds of one afterwards."""

from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import (
    POSITION_OF_SYNC,
    Source,
    SourceTable,
    Sync,
)
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, start_tables, stop_tables

OLDEST, NOW, RESUME = Start(StartKind.OLDEST), Start(StartKind.NOW), Start(StartKind.RESUME)


def start(database: Database, *tables: str, how: Start = RESUME) -> list[Outcome]:
    with database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        return start_tables(connection, source_id, [("shop", table) for table in tables], how)


def stop(database: Database, *tables: str) -> list[Outcome]:
    with database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        return stop_tables(connection, source_id, [("shop", table) for table in tables])


def sync_of(database: Database, table: str) -> dict:
    with database.read() as connection:
        statement = select(Sync, POSITION_OF_SYNC).join(SourceTable).where(SourceTable.name == table)
        return dict(connection.execute(statement).mappings().one())
