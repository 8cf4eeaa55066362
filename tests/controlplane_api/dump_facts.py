"""Dumps in tests: ordered, planned, and moved by cuts of the source shop."""

from collections.abc import Callable

import pytest
from menura.landing import LandedChunk, LandedEvent
from sqlalchemy import select

from controlplane_api import dumps
from controlplane_api.database import Database
from controlplane_api.dump_lives import DEFAULT_OPTIONS, DumpOptions
from controlplane_api.models import Dump, Source, SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, start_tables
from gateway.registry import DumpPlanned, KeyRange, Problem
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, dump_event, entry, file, started

RANGES = (KeyRange(0, "", '["500"]'), KeyRange(1, '["500"]', ""))
PLAN = DumpPlanned(("id",), RANGES, 1_000, 50_000, None, None, "")
WHOLE = DumpPlanned((), (), 1_000, 50_000, 3_600, 60, "")
BROKEN = Problem("DUMP_TABLE_RENAMED", "The table was renamed.", terminal=True, at_us=T0)


def command(database: Database, do: Callable, *arguments: object, **options: object):
    with database.write() as connection:
        source_id = connection.execute(select(Source.id).order_by(Source.id).limit(1)).scalar_one()
        return do(connection, source_id, *arguments, **options)


def begin(database: Database, *tables: str, kind: StartKind = StartKind.OLDEST) -> list[Outcome]:
    return command(database, start_tables, [("shop", table) for table in tables], Start(kind))


def dump(database: Database, table: str, options: DumpOptions = DEFAULT_OPTIONS) -> str:
    (outcome,) = command(database, dumps.start_dumps, [("shop", table)], options)
    if outcome.refused is not None:
        raise outcome.refused
    return outcome.dump


def row_of(database: Database, uuid: str) -> dict:
    with database.read() as connection:
        return dict(connection.execute(select(Dump).where(Dump.uuid == uuid)).mappings().one())


def missing(database: Database, table: str = "orders") -> str:
    with database.read() as connection:
        statement = select(Sync.earlier_rows_missing).join(SourceTable).where(SourceTable.name == table)
        return connection.execute(statement).scalar_one()


class Log:
    """Cuts of the source, each an entry of its own."""

    def __init__(self, registry: SqlRegistry) -> None:
        self.registry = registry
        self.entries = []

    def cut(self, *parts: LandedChunk | LandedEvent, table: str = "orders", **more: object) -> None:
        chunks = [part for part in parts if isinstance(part, LandedChunk)]
        files = [file(table, each.rows) for each in chunks if each.rows]
        events = [part for part in parts if isinstance(part, LandedEvent)]
        number = len(self.entries) + 1
        self.entries.append(entry(number, cut(number, *files, chunks=chunks, events=events, **more)))
        self.registry.apply_entry(LANDING, self.entries[-1])


@pytest.fixture
def log(registry: SqlRegistry) -> Log:
    facts.record_shop(registry)
    return Log(registry)


@pytest.fixture
def streaming(log: Log, database: Database) -> Log:
    """shop.orders streams; rows before its first position are missing."""
    begin(database, "orders")
    log.cut(start=[started("orders", 0, "purged")])
    return log


def planned(log: Log, database: Database, plan: DumpPlanned = PLAN) -> str:
    """A dump of shop.orders that has begun."""
    uuid = dump(database, "orders")
    log.registry.record_dump_plan(KEY, uuid, plan, T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", uuid))
    return uuid
