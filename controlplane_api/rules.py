"""Standing rules: which tables of a source shall be synced as soon as they are there, by a pattern of their names.

Comes in: rules from commands, and cartographies as they come. Goes out: starts of tables for which no sync was ever
asked. So a table that somebody has stopped stays stopped, and one that got another name is started under the new one if
a rule has it. What the agent's policy denies is left alone until that changes. A rule is applied within the transaction
that ends a cartography; a kill before it leaves that to the next one.
"""

from dataclasses import asdict
from uuid import uuid4

from menura.instants import now_us
from sqlalchemy import Connection, delete, func, insert, select, update

from controlplane_api.dump_lives import DumpOptions
from controlplane_api.errors import RulesTooMany, RuleUnknown
from controlplane_api.models import AnyRow, SourceTable, Sync, SyncRule
from controlplane_api.selection import Pattern
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, lock_source, start_tables

MAX_RULES = 100
#: that a rule can begin a table with: a position is one table's
STARTS = (StartKind.DUMP, StartKind.OLDEST, StartKind.NOW)


def make(connection: Connection, source_id: int, pattern: Pattern, start: StartKind, options: DumpOptions) -> str:
    """A rule for this pattern, its name; one that has it gets this start, in its place. Raises `RulesTooMany`."""
    lock_source(connection, source_id)
    of_source = SyncRule.source_id == source_id
    same = (of_source, SyncRule.database == pattern.database, SyncRule.name == pattern.table)
    known = update(SyncRule).where(*same).values(start=start, options=asdict(options)).returning(SyncRule.uuid)
    former: str | None = connection.execute(known).scalar()
    if former is not None:
        return former
    if connection.execute(select(func.count()).where(of_source)).scalar_one() >= MAX_RULES:
        raise RulesTooMany(
            "making a rule",
            f"the source has {MAX_RULES} rules",
            data="Nothing was changed.",
            remedy="Remove one, or take a wider pattern.",
        )
    uuid = str(uuid4())
    row = {
        "uuid": uuid, "source_id": source_id, "database": pattern.database, "name": pattern.table, "start": start,
        "options": asdict(options), "created_at_us": now_us(),
    }  # fmt: skip
    connection.execute(insert(SyncRule).values(row))
    return uuid


def listed(connection: Connection, source_id: int) -> list[AnyRow]:
    """The oldest first."""
    return list(connection.execute(select(SyncRule).where(SyncRule.source_id == source_id).order_by(SyncRule.id)))


def remove(connection: Connection, source_id: int, uuid: str) -> None:
    """Tables that it has started go on. Raises `RuleUnknown`."""
    lock_source(connection, source_id)
    gone = connection.execute(delete(SyncRule).where(SyncRule.source_id == source_id, SyncRule.uuid == uuid))
    if gone.rowcount == 0:
        raise RuleUnknown(
            "removing a rule", "the source has none of this name", remedy="The list of the source's rules has all."
        )


def apply(connection: Connection, source_id: int) -> list[Outcome]:
    """Start the tables that the rules have and that nobody has asked for yet; the oldest rule that has one decides."""
    rules = listed(connection, source_id)
    if not rules:
        return []
    statement = (
        select(SourceTable.database, SourceTable.name)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(
            SourceTable.source_id == source_id, SourceTable.gone.is_(False), SourceTable.denied.is_(False),
            Sync.table_id.is_(None),
        )
        .order_by(SourceTable.database, SourceTable.name)
    )  # fmt: skip
    left = [(row.database, row.name) for row in connection.execute(statement)]
    outcomes: list[Outcome] = []
    for rule in rules:
        pattern = Pattern(rule.database, rule.name)
        names = [name for name in left if pattern.matches(name)]
        if names:
            taken = set(names)
            left = [name for name in left if name not in taken]
            start = Start(StartKind(rule.start))
            outcomes += start_tables(connection, source_id, names, start, DumpOptions(**rule.options))
    return outcomes
