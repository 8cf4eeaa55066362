"""Following the cut log: what an entry says becomes positions, counts and states in the database.

Comes in: one entry, in order. Goes out: one transaction that holds all of it with the entry's number, so
that a kill leaves the entry either applied or to be applied again. The log alone decides about positions:
replayed into an empty database it gives the same positions, counts and failures. What only commands know,
which tables shall be syncing, it can't give back: tables it brings are 'stopped' at a place from which
a resume loses and repeats nothing, and say so (`lost_state`).

An entry is applied at once for all its sources. Where the database refuses it for what it says, it is applied again
source by source (`apply_apart`): a source whose cuts are refused for themselves is quarantined, the others move on. A
source in quarantine stays where it is, and its later cuts are held with the first. So is an entry applied where another
transaction holds a row that it changes: the sources concerned wait (`blocked`), the others move on. Of each source
the entries are applied in the order of the log, whatever it waits for.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from menura.bounds import clean_int64
from menura.horizon import Horizon
from menura.landing import LandedCut, LandedFence, LogEntry
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from controlplane_api import continuity_ledger, lost_state, positions, repair_proofs, rereads
from controlplane_api.continuity_ledger import Entry
from controlplane_api.database import bound_lock_waits, is_lock_timeout
from controlplane_api.documents import Document, insert_into
from controlplane_api.errors import EntryOutOfOrder
from controlplane_api.models import Landing
from controlplane_api.registry import blocked, definitions, horizons, leases, quarantine, table_events
from controlplane_api.registry.cut_effects import FOREIGN_KEYS, apply_cut
from controlplane_api.registry.dump_ledger import Ledger, Mention
from controlplane_api.registry.quarantine import HeldCuts
from controlplane_api.registry.source_rows import SourceRow, lock_sources, select_sources, store_sources
from controlplane_api.registry.sync_rows import SyncRow, TableKey, keep_positions, load_syncs, store_syncs
from controlplane_api.states import LedgerKind, StartKind
from gateway.registry import SourceKey, sources_of

#: for locks of other transactions, an entry: everybody's commits wait so long
LOCK_SECONDS = 0.2
#: ... again, for all of its sources, and each time that what is left of a source is tried again
RETRY_LOCK_SECONDS = 0.05
#: of each source, also where those before it have waited for all of that
LEAST_LOCK_SECONDS = 0.01


def applied_entry(connection: Connection, landing: str) -> int:
    """Number of the last entry that the database holds; 0 for none."""
    return connection.execute(select(Landing.applied_entry).where(Landing.url == landing)).scalar() or 0


def apply_entry(connection: Connection, landing: str, entry: LogEntry, *, compares: bool = False) -> None:
    """Apply one entry once; raises `EntryOutOfOrder` when those before it are missing."""
    if _is_next(connection, landing, entry):
        bound_lock_waits(connection, LOCK_SECONDS)
        rest = _unblocked(connection, landing, entry)
        if rest.cuts:
            _apply_cuts(connection, landing, rest, compares=compares)
        _fence(connection, rest)
        _applied(connection, landing, entry)


def apply_apart(connection: Connection, landing: str, entry: LogEntry, *, compares: bool = False) -> None:
    """The same, a source at a time: one whose cuts are poison is quarantined, one that others hold is left to wait."""
    if not _is_next(connection, landing, entry):
        return
    until = time.monotonic() + RETRY_LOCK_SECONDS
    bound_lock_waits(connection, LOCK_SECONDS)
    for key, part in _by_source(_unblocked(connection, landing, entry)).items():
        bound_lock_waits(connection, max(LEAST_LOCK_SECONDS, until - time.monotonic()))
        try:
            with connection.begin_nested():
                _apply_or_hold(connection, landing, key, part, compares=compares)
        except DBAPIError as failure:
            if not is_lock_timeout(failure):
                raise
            blocked.add(connection, landing, key, entry.entry)
    _applied(connection, landing, entry)


def apply_blocked(
    connection: Connection, landing: str, key: SourceKey, entry: LogEntry, *, compares: bool = False
) -> None:
    """Apply what waits of a source in an entry, unless another gateway has; entries come in order."""
    bound_lock_waits(connection, RETRY_LOCK_SECONDS)
    select_sources(connection, {key})  # first: others' entries may wait for the row that says what waits
    first = blocked.lock(connection, landing, key)
    if first is None or first > entry.entry:
        return
    part = _by_source(entry).get(key)
    if part is not None:
        _apply_or_hold(connection, landing, key, part, compares=compares)
    blocked.applied(connection, landing, key, entry.entry)


def apply_horizon(connection: Connection, landing: str, horizon: Horizon) -> None:
    """What entries up to the horizon's have built, in place of them; nothing where they are applied."""
    if _lock_landing(connection, landing) < horizon.entry:
        entry = horizons.as_entry(horizon)
        _apply_cuts(connection, landing, entry, with_held=True)
        horizons.restore(connection, horizon)
        blocked.forget(connection, landing)
        _fence(connection, entry)
        _applied(connection, landing, entry)


def apply_held(connection: Connection, landing: str, key: SourceKey, entry: LogEntry) -> bool:
    """Apply what is held of a source in quarantine; False where it is refused again."""
    part = _by_source(replace(entry, fences=())).get(key)
    source = select_sources(connection, {key})[key]
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


def _unblocked(connection: Connection, landing: str, entry: LogEntry) -> LogEntry:
    """The entry without sources that wait for a lock, which now wait for this one too."""
    waiting = blocked.extend(connection, landing, entry, sources_of(entry))
    if not waiting:
        return entry
    return replace(
        entry,
        cuts=tuple(cut for cut in entry.cuts if SourceKey(cut.tenant, cut.source) not in waiting),
        fences=tuple(fence for fence in entry.fences if SourceKey(fence.tenant, fence.source) not in waiting),
    )


def _by_source(entry: LogEntry) -> dict[SourceKey, LogEntry]:
    """An entry for each source, with its cuts and fences alone."""
    cuts: dict[SourceKey, list[LandedCut]] = defaultdict(list)
    fences: dict[SourceKey, list[LandedFence]] = defaultdict(list)
    for cut in entry.cuts:
        cuts[SourceKey(cut.tenant, cut.source)].append(cut)
    for fence in entry.fences:
        fences[SourceKey(fence.tenant, fence.source)].append(fence)
    return {key: replace(entry, cuts=tuple(cuts[key]), fences=tuple(fences[key])) for key in [*cuts, *fences]}


def _apply_or_hold(connection: Connection, landing: str, key: SourceKey, part: LogEntry, *, compares: bool) -> None:
    """What an entry has of one source; cuts that are poison quarantine it."""
    if part.cuts:
        source = lock_sources(connection, {key}, part)[key]
        try:
            with connection.begin_nested():
                _apply_cuts(connection, landing, part, compares=compares)
        except Exception as failure:
            if not quarantine.is_poison(failure):
                raise
            quarantine.hold(connection, source.id, _held(key, landing, part, source.id), failure)
    _fence(connection, part)


def _held(key: SourceKey, landing: str, entry: LogEntry, source_id: int) -> HeldCuts:
    named = _tables_of((SourceRow(source_id, 0), cut) for cut in entry.cuts)
    return HeldCuts(key, landing, entry, {(database, table) for _, database, table in named})


def _is_next(connection: Connection, landing: str, entry: LogEntry) -> bool:
    """False for one that is there; the landing's row gets locked."""
    applied = _lock_landing(connection, landing)
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


def _lock_landing(connection: Connection, landing: str) -> int:
    """The last entry that is applied; nobody applies one meanwhile."""
    new = insert_into(connection, Landing).values(url=landing, applied_entry=0)
    connection.execute(new.on_conflict_do_nothing())
    locked = select(Landing.applied_entry).where(Landing.url == landing).with_for_update(key_share=True)
    return int(connection.execute(locked).scalar_one())


def _fence(connection: Connection, entry: LogEntry) -> None:
    """Behind its cuts: fences count for later entries."""
    leases.raise_epoch(
        connection, {SourceKey(fence.tenant, fence.source): clean_int64(fence.epoch) for fence in entry.fences}
    )


def _applied(connection: Connection, landing: str, entry: LogEntry) -> None:
    connection.execute(update(Landing).where(Landing.url == landing).values(applied_entry=entry.entry))


def _apply_cuts(
    connection: Connection, landing: str, entry: LogEntry, *, with_held: bool = False, compares: bool = False
) -> None:
    """`with_held`: also of sources in quarantine, whose cuts are held else. `compares`: see `rereads.order_due`."""
    sources = lock_sources(connection, {SourceKey(cut.tenant, cut.source) for cut in entry.cuts}, entry)
    cuts: list[tuple[SourceRow, LandedCut]] = []
    if not with_held:
        _hold_more(connection, landing, entry, sources)
    for cut in entry.cuts:
        source = sources[SourceKey(cut.tenant, cut.source)]
        if source.is_quarantined and not with_held:
            continue
        # What others may have written behind its fence does not count; what is held was looked at when it came.
        if cut.cut > source.cut and (with_held or cut.epoch >= source.logged_epoch):
            source.cut = cut.cut
            cuts.append((source, cut))
    syncs, known = load_syncs(connection, _tables_of(cuts))
    ledger = _load_ledger(connection, cuts, syncs, entry.committed_at_us)
    before = _positions_of_started(connection, cuts, syncs)
    for source, cut in cuts:
        apply_cut(source, cut, syncs, before, ledger, entry.committed_at_us)
    continuity_ledger.append(connection, entry.committed_at_us, _told(cuts, syncs))
    ledger.store()
    left = keep_positions(connection, syncs)
    events = [(syncs[source.id, event.database, event.table], event) for source, cut in cuts for event in cut.events]
    table_events.record(connection, [(sync.table_id, event) for sync, event in events])
    definitions.record_events(connection, [(sync.source_id, sync.table_id, event) for sync, event in events])
    store_syncs(connection, syncs.values(), known)
    positions.drop_unused(connection, left)
    # Before the position moves: a dump that begins in this entry heals what lakes stopped before it.
    asked = rereads.note_stops(connection, _askable(cuts, syncs))
    store_sources(connection, sources, landing, entry)
    noted = [sync.table_id for sync in syncs.values() if sync.unlogged]
    rereads.order_due(connection, sorted({*noted, *asked}), entry.committed_at_us, compares=compares)
    repair_proofs.order_proofs(connection, ledger.repaired, entry.committed_at_us)
    repair_proofs.follow_ended(connection, ledger.verified, entry.committed_at_us)


def _told(
    cuts: Iterable[tuple[SourceRow, LandedCut]], syncs: Mapping[TableKey, SyncRow]
) -> Iterator[tuple[int, Entry]]:
    """For the continuity ledger, after the cuts were applied."""
    for source, cut in cuts:
        for (database, table), entry in continuity_ledger.of_cut(cut):
            sync = syncs[source.id, database, table]
            if entry.kind is LedgerKind.STARTED and lost_state.is_lost(sync.problem):
                yield sync.table_id, Entry(LedgerKind.HISTORY_LOST, detail=lost_state.HISTORY_LOST)
            yield sync.table_id, entry


def _positions_of_started(
    connection: Connection, cuts: Iterable[tuple[SourceRow, LandedCut]], syncs: Mapping[TableKey, SyncRow]
) -> dict[int, Document]:
    """Where tables were that start, by `position_id`."""
    started = (syncs[source.id, each.database, each.table] for source, cut in cuts for each in cut.started)
    return positions.documents(connection, {sync.position_id for sync in started if sync.position_id is not None})


def _hold_more(connection: Connection, landing: str, entry: LogEntry, sources: Mapping[SourceKey, SourceRow]) -> None:
    if not any(source.is_quarantined for source in sources.values()):
        return
    for key, part in _by_source(replace(entry, fences=())).items():
        source = sources[key]
        if source.is_quarantined:
            quarantine.hold_more(connection, source.id, _held(key, landing, part, source.id))


def _askable(cuts: Iterable[tuple[SourceRow, LandedCut]], syncs: Mapping[TableKey, SyncRow]) -> list[int]:
    """Tables whose sync begins, or of which the policy comes: lakes may ask for their dumps since then."""
    tables: set[int] = set()
    for source, cut in cuts:
        tables.update(syncs[source.id, start.database, start.table].table_id for start in cut.started)
        keys = (event for event in cut.events if event.kind == FOREIGN_KEYS)
        tables.update(syncs[source.id, event.database, event.table].table_id for event in keys)
    return sorted(tables)


def _load_ledger(
    connection: Connection, cuts: Iterable[tuple[SourceRow, LandedCut]], syncs: dict[TableKey, SyncRow], at_us: int
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


def _tables_of(cuts: Iterable[tuple[SourceRow, LandedCut]]) -> list[TableKey]:
    tables: set[TableKey] = set()
    for source, cut in cuts:
        tables.update((source.id, start.database, start.table) for start in cut.started)
        tables.update((source.id, file.database, file.table) for file in cut.files)
        tables.update((source.id, event.database, event.table) for event in cut.events)
        tables.update((source.id, chunk.database, chunk.table) for chunk in cut.chunks)
        tables.update((source.id, stop.database, stop.table) for stop in cut.stopped)
    return sorted(tables)
