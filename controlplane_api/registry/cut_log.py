"""Following the cut log: what an entry says becomes positions, counts and states in the database.

Comes in: one entry, in order. Goes out: one transaction that holds all of it with the entry's number, so
that a kill leaves the entry either applied or to be applied again. The log alone decides about positions:
replayed into an empty database it gives the same positions, counts and failures. What only commands know,
which tables shall be syncing, it can't give back: tables it brings are 'stopped' at a place from which
a resume loses and repeats nothing, and say so (`lost_state`).

An entry is applied at once for all its sources. Where the database refuses it for what it says, it is applied again
source by source (`apply_apart`): a source whose cuts are refused for themselves is quarantined, the others move on. A
source in quarantine stays where it is, and its later cuts are held with the first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from menura.bounds import clean_int64
from menura.landing import LandedCut, LandedStart, LandedStop, LogEntry
from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from controlplane_api import lost_state, positions, rereads
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document, ahead_document, insert_into, position_document, position_from
from controlplane_api.dump_lives import NOT_YET
from controlplane_api.errors import EntryOutOfOrder
from controlplane_api.models import CommittedPosition, Landing, Quarantine, Source, SourceTable, Sync, Tenant
from controlplane_api.registry import leases, quarantine, table_events
from controlplane_api.registry.dump_ledger import Ledger, Mention
from controlplane_api.registry.quarantine import HeldCuts
from controlplane_api.states import Desired, StartKind, State
from controlplane_api.tenants import ensure_tenants
from gateway.registry import Problem, SourceKey

TableKey = tuple[int, str, str]

FOREIGN_KEYS = "FOREIGN_KEYS"


@dataclass(slots=True)
class _Source:
    id: int
    generation: int
    epoch: int = 0
    cut: int = 0
    rows: int = 0
    bytes: int = 0
    transactions: int = 0
    last_commit_timestamp_us: int | None = None
    last: LandedCut | None = None
    stored_generation: int = 0
    is_quarantined: bool = False


@dataclass(slots=True)
class _Sync:
    """A row of `sync`, by the names of its columns."""

    table_id: int
    source_id: int
    desired: str = Desired.STOPPED
    start: str | None = None
    start_text: str = ""
    changed_generation: int = 0
    failed: bool = False
    state: str = State.STOPPED
    problem: Document | None = None
    position_id: int | None = None
    earlier_rows_missing: str = ""
    unlogged: Document | None = None
    lake_rereads_per_hour: int = 0
    ignored_columns: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    last_commit_timestamp_us: int | None = None
    landed_at_us: int | None = None
    #: where the entry moves it to; none: nowhere
    position: Document | None = None

    @property
    def has_position(self) -> bool:
        return self.position is not None or self.position_id is not None


_SYNC_COLUMNS = tuple(column.name for column in fields(_Sync) if column.name != "position")


def applied_entry(connection: Connection, landing: str) -> int:
    """Number of the last entry that the database holds; 0 for none."""
    return connection.execute(select(Landing.applied_entry).where(Landing.url == landing)).scalar() or 0


def apply_entry(connection: Connection, landing: str, entry: LogEntry) -> None:
    """Apply one entry once; raises `EntryOutOfOrder` when those before it are missing."""
    if _is_next(connection, landing, entry):
        _apply_cuts(connection, landing, entry)
        _applied(connection, landing, entry)


def apply_apart(connection: Connection, landing: str, entry: LogEntry) -> None:
    """The same, a source at a time: one whose cuts are poison is quarantined."""
    if not _is_next(connection, landing, entry):
        return
    sources = _lock_sources(connection, {SourceKey(cut.tenant, cut.source) for cut in entry.cuts}, entry)
    for key, part in _by_source(entry).items():
        try:
            with connection.begin_nested():
                _apply_cuts(connection, landing, part)
        except Exception as failure:
            if not quarantine.is_poison(failure):
                raise
            source_id = sources[key].id
            quarantine.hold(connection, source_id, _held(key, landing, part, source_id), failure)
    _applied(connection, landing, entry)


def apply_held(connection: Connection, landing: str, key: SourceKey, entry: LogEntry) -> bool:
    """Apply what is held of a source in quarantine; False where it is refused again."""
    part = _by_source(entry).get(key)
    source = _select_sources(connection, {key})[key]
    if not source.is_quarantined:
        return True
    if part is not None:
        try:
            with connection.begin_nested():
                _apply_cuts(connection, landing, part, with_held=True)
        except Exception as failure:
            if not quarantine.is_poison(failure):
                raise
            quarantine.refused_again(connection, source.id, _held(key, landing, part, source.id), failure)
            return False
    quarantine.applied(connection, source.id, entry.entry)
    return True


def _by_source(entry: LogEntry) -> dict[SourceKey, LogEntry]:
    """An entry for each source, with its cuts alone."""
    cuts: dict[SourceKey, list[LandedCut]] = defaultdict(list)
    for cut in entry.cuts:
        cuts[SourceKey(cut.tenant, cut.source)].append(cut)
    return {key: replace(entry, cuts=tuple(of_source)) for key, of_source in cuts.items()}


def _held(key: SourceKey, landing: str, entry: LogEntry, source_id: int) -> HeldCuts:
    named = _tables_of((_Source(source_id, 0), cut) for cut in entry.cuts)
    return HeldCuts(key, landing, entry, {(database, table) for _, database, table in named})


def _is_next(connection: Connection, landing: str, entry: LogEntry) -> bool:
    """False for one that is there; the landing's row gets locked."""
    connection.execute(insert_into(connection, Landing).values(url=landing, applied_entry=0).on_conflict_do_nothing())
    applied = connection.execute(
        select(Landing.applied_entry).where(Landing.url == landing).with_for_update(key_share=True)
    ).scalar_one()
    if entry.entry <= applied:
        return False
    if entry.entry != applied + 1:
        raise EntryOutOfOrder(
            "following the cut log",
            f"entry {entry.entry} came after entry {applied}",
            data="Nothing of it was applied.",
            remedy="Apply the entries between first.",
        )
    return True


def _applied(connection: Connection, landing: str, entry: LogEntry) -> None:
    connection.execute(update(Landing).where(Landing.url == landing).values(applied_entry=entry.entry))


def _apply_cuts(connection: Connection, landing: str, entry: LogEntry, *, with_held: bool = False) -> None:
    """`with_held`: also of sources in quarantine, whose cuts are held else."""
    sources = _lock_sources(connection, {SourceKey(cut.tenant, cut.source) for cut in entry.cuts}, entry)
    cuts: list[tuple[_Source, LandedCut]] = []
    if not with_held:
        _hold_more(connection, landing, entry, sources)
    for cut in entry.cuts:
        source = sources[SourceKey(cut.tenant, cut.source)]
        if source.is_quarantined and not with_held:
            continue
        if cut.cut > source.cut:  # one at or below came from a gateway that had lost its lease
            source.cut = cut.cut
            cuts.append((source, cut))
    syncs, known = _load_syncs(connection, _tables_of(cuts))
    ledger = _load_ledger(connection, cuts, syncs, entry.committed_at_us)
    before = _positions_of_started(connection, cuts, syncs)
    for source, cut in cuts:
        _apply_cut(source, cut, syncs, before, ledger, entry.committed_at_us)
    ledger.store()
    left = _keep_positions(connection, syncs)
    events = [(syncs[source.id, event.database, event.table], event) for source, cut in cuts for event in cut.events]
    table_events.record(connection, [(sync.table_id, event) for sync, event in events])
    new = [_sync_row(sync) for sync in syncs.values() if sync.table_id not in known]
    old = [_sync_row(sync) for sync in syncs.values() if sync.table_id in known]
    if new:
        connection.execute(insert(Sync), new)
    if old:
        connection.execute(_UPDATE_SYNC, [{f"new_{name}": value for name, value in row.items()} for row in old])
    positions.drop_unused(connection, left)
    # Before the position moves: a dump that begins in this entry heals what lakes stopped before it.
    asked = rereads.note_stops(connection, _askable(cuts, syncs))
    _store_sources(connection, sources, landing, entry)
    noted = [sync.table_id for sync in syncs.values() if sync.unlogged]
    rereads.order_due(connection, sorted({*noted, *asked}), entry.committed_at_us)


def _sync_row(sync: _Sync) -> Document:
    return {name: getattr(sync, name) for name in _SYNC_COLUMNS}


def _positions_of_started(
    connection: Connection, cuts: Iterable[tuple[_Source, LandedCut]], syncs: Mapping[TableKey, _Sync]
) -> dict[int, Document]:
    """Where tables were that start, by `position_id`."""
    started = (syncs[source.id, each.database, each.table] for source, cut in cuts for each in cut.started)
    return positions.documents(connection, {sync.position_id for sync in started if sync.position_id is not None})


def _keep_positions(connection: Connection, syncs: Mapping[TableKey, _Sync]) -> set[int]:
    """Give the syncs that move the ids of their new positions; the ids that they have left."""
    moved = [sync for sync in syncs.values() if sync.position is not None]
    kept = positions.keep(connection, ((sync.source_id, sync.position) for sync in moved if sync.position is not None))
    left: set[int] = set()
    for sync in moved:
        former, sync.position_id = sync.position_id, kept.id_of(sync.source_id, sync.position)
        if former is not None and former != sync.position_id:
            left.add(former)
    return left


def _hold_more(connection: Connection, landing: str, entry: LogEntry, sources: Mapping[SourceKey, _Source]) -> None:
    if not any(source.is_quarantined for source in sources.values()):
        return
    for key, part in _by_source(entry).items():
        source = sources[key]
        if source.is_quarantined:
            quarantine.hold_more(connection, source.id, _held(key, landing, part, source.id))


def _askable(cuts: Iterable[tuple[_Source, LandedCut]], syncs: Mapping[TableKey, _Sync]) -> list[int]:
    """Tables whose sync begins, or of which the policy comes: lakes may ask for their dumps since then."""
    tables: set[int] = set()
    for source, cut in cuts:
        tables.update(syncs[source.id, start.database, start.table].table_id for start in cut.started)
        keys = (event for event in cut.events if event.kind == FOREIGN_KEYS)
        tables.update(syncs[source.id, event.database, event.table].table_id for event in keys)
    return sorted(tables)


_UPDATE_SYNC = (
    update(Sync)
    .where(Sync.table_id == bindparam("new_table_id"))
    .values({name: bindparam(f"new_{name}") for name in _SYNC_COLUMNS if name not in ("table_id", "source_id")})
)


def _load_ledger(
    connection: Connection, cuts: Iterable[tuple[_Source, LandedCut]], syncs: dict[TableKey, _Sync], at_us: int
) -> Ledger:
    mentioned: list[Mention] = []
    stopped: set[int] = set()
    for source, cut in cuts:
        named = [(chunk.database, chunk.table, chunk.dump) for chunk in cut.chunks]
        named += [(event.database, event.table, event.dump) for event in cut.events if event.dump]
        mentioned += [Mention(source.id, syncs[source.id, name[0], name[1]].table_id, name[2]) for name in named]
        for start in cut.started:
            sync = syncs[source.id, start.database, start.table]
            if sync.start == StartKind.DUMP:
                mentioned.append(Mention(source.id, sync.table_id, sync.start_text))
        stopped.update(syncs[source.id, stop.database, stop.table].table_id for stop in cut.stopped)
    return Ledger(connection, mentioned, sorted(stopped), at_us)


def _apply_cut(
    source: _Source,
    cut: LandedCut,
    syncs: dict[TableKey, _Sync],
    before: Mapping[int, Document],
    ledger: Ledger,
    at_us: int,
) -> None:
    """`before`: where tables were that start."""
    ahead = {table: position_document(part.position) for part in cut.ahead for table in part.tables}
    here = position_document(cut.position)
    source.generation = max(source.generation, cut.generation)
    for start in cut.started:
        sync = syncs[source.id, start.database, start.table]
        _begin(sync, start, before, cut.generation, ledger)
        if sync.desired == Desired.STOPPED and cut.generation >= sync.changed_generation:
            # A command has started it that the database never heard of.
            sync.problem = asdict(lost_state.table_problem(cut.source, start.database, start.table, at_us))
    for chunk in cut.chunks:
        ledger.chunk(source.id, syncs[source.id, chunk.database, chunk.table].table_id, chunk)
    for event in cut.events:  # the lake has it: a resume before it would bring it once more
        sync = syncs[source.id, event.database, event.table]
        sync.position = ahead.get((event.database, event.table), here)
        sync.unlogged = rereads.noted(sync.unlogged, event)
        if event.kind == FOREIGN_KEYS:
            sync.lake_rereads_per_hour = event.most_rereads_per_hour
        if event.dump:
            _follow_dump(sync, ledger.event(source.id, sync.table_id, event))
    for file in cut.files:
        sync = syncs[source.id, file.database, file.table]
        sync.rows = clean_int64(sync.rows + file.rows)
        sync.bytes = clean_int64(sync.bytes + file.bytes)
        sync.position = ahead.get((file.database, file.table), here)
        sync.last_commit_timestamp_us = cut.last_commit_timestamp_us or sync.last_commit_timestamp_us
        sync.landed_at_us = at_us
        source.rows = clean_int64(source.rows + file.rows)
        source.bytes = clean_int64(source.bytes + file.bytes)
    stops = [(syncs[source.id, stop.database, stop.table], stop) for stop in cut.stopped]
    failed = [(sync, stop) for sync, stop in stops if _end(sync, stop, cut.generation, at_us)]
    if failed:
        source.generation += 1
    for sync, stop in failed:
        sync.changed_generation = source.generation
        missing = ledger.stopped(source.id, sync.table_id, stop)
        sync.earlier_rows_missing = sync.earlier_rows_missing and (missing or sync.earlier_rows_missing)
    source.transactions = clean_int64(source.transactions + cut.transaction_count)
    source.last_commit_timestamp_us = cut.last_commit_timestamp_us or source.last_commit_timestamp_us
    source.epoch = max(source.epoch, cut.epoch)
    source.last = cut


def _begin(sync: _Sync, start: LandedStart, before: Mapping[int, Document], generation: int, ledger: Ledger) -> None:
    position = position_document(start.position)
    missing = start.earlier_rows_missing
    if sync.start == StartKind.DUMP and generation >= sync.changed_generation:
        missing = ledger.missing_at_start(sync.source_id, sync.start_text) or NOT_YET
    stored = before.get(sync.position_id) if sync.position_id is not None else None
    is_there = position_from(sync.position or stored) == start.position
    goes_on = sync.has_position and (sync.start == StartKind.RESUME or is_there)
    if not goes_on:  # a resume misses what the table's first start missed, no more
        # Without a command's word that it begins anew, a replay doesn't take back that rows are missing.
        kept = sync.earlier_rows_missing if sync.start is None else ""
        sync.earlier_rows_missing = missing or kept
    sync.position = position
    if generation < sync.changed_generation:
        return
    sync.start, sync.start_text = None, ""
    if sync.failed:  # only when the log is replayed: the command that started it again had cleared this
        sync.failed, sync.problem, sync.state = False, None, State.STOPPED


def _follow_dump(sync: _Sync, missing: str | None) -> None:
    if missing is not None:
        sync.earlier_rows_missing = missing
    if missing == "" and sync.state == State.DUMPING:
        sync.state = State.STREAMING


def _end(sync: _Sync, stop: LandedStop, generation: int, at_us: int) -> bool:
    """Whether this stop ends the sync's present life; not if it was stopped or started again since."""
    sync.position = position_document(stop.position)
    if generation < sync.changed_generation:
        return False
    sync.failed, sync.state = True, State.FAILED
    sync.start, sync.start_text = None, ""
    sync.problem = asdict(Problem(stop.code, stop.message, terminal=True, at_us=at_us))
    return True


def _lock_sources(connection: Connection, keys: set[SourceKey], entry: LogEntry) -> dict[SourceKey, _Source]:
    """The entry's sources, locked in one order; those that the database does not know are created."""
    found = _select_sources(connection, keys)
    missing = keys - found.keys()
    if missing:
        ids = ensure_tenants(connection, {key.tenant for key in missing}, entry.committed_at_us)
        flavors = {SourceKey(cut.tenant, cut.source): cut.flavor for cut in entry.cuts}
        connection.execute(
            insert_into(connection, Source).on_conflict_do_nothing(),
            [{"tenant_id": ids[key.tenant], "name": key.source, "flavor": flavors[key]} for key in missing],
        )
        found = _select_sources(connection, keys)
    return found


def _select_sources(connection: Connection, keys: set[SourceKey]) -> dict[SourceKey, _Source]:
    rows = connection.execute(
        select(
            Tenant.name.label("tenant"), Source.name, Source.id, Source.generation,
            CommittedPosition.epoch, CommittedPosition.cut, CommittedPosition.rows, CommittedPosition.bytes,
            CommittedPosition.transactions, CommittedPosition.last_commit_timestamp_us,
            Quarantine.source_id.label("quarantined"),
        )
        .join_from(Source, Tenant)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .where(tuple_(Tenant.name, Source.name).in_([(key.tenant, key.source) for key in keys]))
        .order_by(Source.id)
        .with_for_update(of=Source, key_share=True)
    )  # fmt: skip
    return {
        SourceKey(row.tenant, row.name): _Source(
            id=row.id,
            generation=row.generation,
            stored_generation=row.generation,
            epoch=row.epoch or 0,
            cut=row.cut or 0,
            rows=row.rows or 0,
            bytes=row.bytes or 0,
            transactions=row.transactions or 0,
            last_commit_timestamp_us=row.last_commit_timestamp_us,
            is_quarantined=row.quarantined is not None,
        )
        for row in rows
    }


def _tables_of(cuts: Iterable[tuple[_Source, LandedCut]]) -> list[TableKey]:
    tables: set[TableKey] = set()
    for source, cut in cuts:
        tables.update((source.id, start.database, start.table) for start in cut.started)
        tables.update((source.id, file.database, file.table) for file in cut.files)
        tables.update((source.id, event.database, event.table) for event in cut.events)
        tables.update((source.id, chunk.database, chunk.table) for chunk in cut.chunks)
        tables.update((source.id, stop.database, stop.table) for stop in cut.stopped)
    return sorted(tables)


def _load_syncs(connection: Connection, tables: Sequence[TableKey]) -> tuple[dict[TableKey, _Sync], set[int]]:
    """Syncs by table, and the ids of those that are stored; the tables themselves are created where unknown."""
    syncs, known = _select_syncs(connection, tables)
    missing = [table for table in tables if table not in syncs]
    if missing:
        connection.execute(
            insert(SourceTable),
            [
                {"source_id": source_id, "database": database, "name": name, "columns": [], "keys": []}
                for source_id, database, name in missing
            ],
        )
        syncs |= _select_syncs(connection, missing)[0]
    return syncs, known


def _select_syncs(connection: Connection, tables: Sequence[TableKey]) -> tuple[dict[TableKey, _Sync], set[int]]:
    syncs: dict[TableKey, _Sync] = {}
    known: set[int] = set()
    columns = [getattr(Sync, name) for name in _SYNC_COLUMNS if name not in ("table_id", "source_id")]
    for begin in range(0, len(tables), LOOKUP_ROWS):
        rows = connection.execute(
            select(
                SourceTable.id, SourceTable.source_id, SourceTable.database, SourceTable.name, Sync.table_id, *columns
            )
            .outerjoin(Sync, Sync.table_id == SourceTable.id)
            .where(
                tuple_(SourceTable.source_id, SourceTable.database, SourceTable.name).in_(
                    tables[begin : begin + LOOKUP_ROWS]
                )
            )
        )
        for id_, source_id, database, name, stored, *values in rows:
            sync = _Sync(id_, source_id)
            if stored is not None:
                known.add(id_)
                sync = _Sync(id_, source_id, *values)
            syncs[source_id, database, name] = sync
    return syncs, known


def _store_sources(connection: Connection, sources: dict[SourceKey, _Source], landing: str, entry: LogEntry) -> None:
    moved = {key: source for key, source in sources.items() if source.last is not None}
    if not moved:
        return
    raised = [source for source in moved.values() if source.generation != source.stored_generation]
    if raised:
        connection.execute(
            update(Source).where(Source.id == bindparam("source")).values(generation=bindparam("to")),
            [{"source": source.id, "to": source.generation} for source in raised],
        )
    leases.raise_epoch(connection, {key: source.epoch for key, source in moved.items()})
    statement = insert_into(connection, CommittedPosition)
    values = [_committed(source, source.last, landing, entry) for source in moved.values() if source.last is not None]
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[CommittedPosition.source_id],
            set_={name: statement.excluded[name] for name in values[0] if name != "source_id"},
        ),
        values,
    )


def _committed(source: _Source, last: LandedCut, landing: str, entry: LogEntry) -> Document:
    return {
        "source_id": source.id,
        "epoch": source.epoch,
        "cut": last.cut,
        "last_gsn": last.last_gsn,
        "last_transaction_id": last.last_transaction_id,
        "position": position_document(last.position),
        "ahead": ahead_document(last.ahead),
        "rows": source.rows,
        "bytes": source.bytes,
        "transactions": source.transactions,
        "last_commit_timestamp_us": source.last_commit_timestamp_us,
        "committed_at_us": entry.committed_at_us,
        "landing": landing,
        "entry": entry.entry,
    }
