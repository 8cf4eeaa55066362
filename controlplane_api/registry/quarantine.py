"""Sources in quarantine: of each the cut log has cuts that the database refuses, now and whenever they come.

Comes in: what a source's cuts were refused with, in the transaction that applies their entry to everybody else. Goes
out: one row a source, with the first entry and cut that is held back and the last, why, and what the last of them says
of where the source is. Durable with the entry: a gateway that starts reads past it like past any other. Lakes read the
cuts from the log as always.

A row ends in one of two ways. The gateway, which alone has the log, applies what is held again: at its start, since
it may be a newer version, and when somebody asks. Or a command moves the source past it: `quarantines` beside here.
"""

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass

from menura.bounds import clean_int64, clean_text
from menura.landing import LogEntry
from menura.naming import TableName, quarantine_of
from sqlalchemy import Connection, delete, insert, select, update

from controlplane_api.database import failure_words, is_permanent
from controlplane_api.documents import Document, ahead_document, position_document
from controlplane_api.dump_lives import grow_dump_generation
from controlplane_api.models import Quarantine, Source, Tenant
from controlplane_api.registry import leases
from gateway.errors import SourceQuarantined
from gateway.registry import Held, Problem, SourceKey

logger = logging.getLogger(__name__)

#: tables of held cuts that are remembered by name
MAX_TABLES = 10_000
#: what code raises that meets facts which it was not made for
_DEFECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class HeldCuts:
    key: SourceKey
    landing: str
    #: with the cuts of this source alone
    entry: LogEntry
    #: of which they say something
    tables: Collection[TableName]


def is_poison(failure: Exception) -> bool:
    """Whether applying a cut that failed so fails again; all else is the database's, and passes."""
    return is_permanent(failure) or isinstance(failure, _DEFECTS)


def hold(connection: Connection, source_id: int, held: HeldCuts, failure: Exception) -> None:
    """The source's first ones, or the first again; the caller holds the source's row."""
    problem = _problem(held, failure)
    logger.error("source is quarantined: source=%s entry=%d: %s", held.key, held.entry.entry, problem.message)
    values = _last(connection, held) | {
        "landing": held.landing,
        "entry": held.entry.entry,
        "cut": clean_int64(held.entry.cuts[0].cut),
        "problem": asdict(problem),
        "tables": _tables(held.tables),
        "retry": False,
    }
    connection.execute(insert(Quarantine), [{"source_id": source_id, **values}])
    grow_dump_generation(connection, source_id)


def hold_more(connection: Connection, source_id: int, held: HeldCuts) -> None:
    """Later ones of a source that is in quarantine already."""
    row = connection.execute(select(Quarantine).where(Quarantine.source_id == source_id)).one()
    if held.entry.entry <= row.last_entry and held.landing == row.landing:
        return
    tables = None if row.tables is None else _tables({*map(tuple, row.tables), *held.tables})
    values = _last(connection, held) | {"tables": tables}
    connection.execute(update(Quarantine).where(Quarantine.source_id == source_id).values(values))


def refused_again(connection: Connection, source_id: int, held: HeldCuts, failure: Exception) -> None:
    """It stays as it is, and is not asked for any more."""
    problem = _problem(held, failure)
    logger.error("source stays in quarantine: source=%s entry=%d: %s", held.key, held.entry.entry, problem.message)
    values = {"problem": asdict(problem), "retry": False}
    connection.execute(update(Quarantine).where(Quarantine.source_id == source_id).values(values))


def applied(connection: Connection, source_id: int, entry: int) -> None:
    """All cuts up to this entry are there: the quarantine ends, or goes on with the next one."""
    this = Quarantine.source_id == source_id
    connection.execute(update(Quarantine).where(this).values(entry=entry + 1))
    ended = connection.execute(delete(Quarantine).where(this, Quarantine.last_entry <= entry))
    if ended.rowcount:
        grow_dump_generation(connection, source_id)


def among(connection: Connection, keys: Collection[SourceKey]) -> frozenset[SourceKey]:
    """Those of the sources that are in quarantine."""
    rows = connection.execute(
        select(Tenant.name.label("tenant"), Source.name).join_from(Quarantine, Source).join(Tenant)
    )
    return frozenset({SourceKey(row.tenant, row.name) for row in rows}.intersection(keys))


def held(connection: Connection, landing: str, *, asked: bool) -> list[Held]:
    """See `gateway.registry.Registry.held`."""
    statement = (
        select(Tenant.name.label("tenant"), Source.name, Quarantine.entry, Quarantine.last_entry)
        .join_from(Quarantine, Source)
        .join(Tenant)
        .where(Quarantine.landing == landing)
        .order_by(Source.id)
    )
    if asked:
        statement = statement.where(Quarantine.retry.is_(True))
    return [Held(SourceKey(row.tenant, row.name), row.entry, row.last_entry) for row in connection.execute(statement)]


def _problem(held: HeldCuts, failure: Exception) -> Problem:
    words = failure_words(failure) if is_permanent(failure) else type(failure).__name__
    cut, command = held.entry.cuts[0].cut, quarantine_of(held.key.source)
    error = SourceQuarantined(
        "applying the cut log",
        f"cut {cut}, which is committed in entry {held.entry.entry}, is refused ({clean_text(words, 500)})",
        data="Lakes have the cut or will; nothing more of the source lands. Other sources go on",
        remedy=f"After an upgrade, have it tried again: {command} --retry; or go on behind it, with new dumps of its"
        f" tables: {command} --skip",
        source=held.key.source,
    )
    return Problem(error.code, str(error), error.terminal, held.entry.committed_at_us)


def _last(connection: Connection, held: HeldCuts) -> Document:
    """What is known after the last one; no later holder of the lease gets its epoch."""
    last, entry = held.entry.cuts[-1], held.entry
    after: Document = {
        "epoch": clean_int64(last.epoch),
        "generation": clean_int64(last.generation),
        "cut": clean_int64(last.cut),
        "last_gsn": clean_int64(last.last_gsn),
        "last_transaction_id": clean_int64(last.last_transaction_id),
        "position": position_document(last.position),
        "ahead": ahead_document(last.ahead),
        "last_commit_timestamp_us": clean_int64(last.last_commit_timestamp_us) or None,
        "committed_at_us": clean_int64(entry.committed_at_us),
        "landing": held.landing,
        "entry": entry.entry,
    }
    leases.raise_epoch(connection, {held.key: clean_int64(last.epoch)})
    return {"last_entry": entry.entry, "last_cut": after["cut"], "after": after}


def _tables(names: Collection[TableName]) -> list[list[str]] | None:
    return [list(name) for name in sorted(names)] if len(names) <= MAX_TABLES else None
