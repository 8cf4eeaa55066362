"""What one cut does to its source and its tables' syncs. Pure but for the ledger of dumps, which it tells."""

from collections.abc import Mapping
from dataclasses import asdict

from menura.bounds import clean_int64
from menura.landing import LandedCut, LandedStart, LandedStop

from controlplane_api import lost_state, rereads
from controlplane_api.documents import Document, position_document, position_from
from controlplane_api.dump_lives import NOT_YET
from controlplane_api.registry.dump_ledger import Ledger
from controlplane_api.registry.source_rows import SourceRow
from controlplane_api.registry.sync_rows import SyncRow, TableKey
from controlplane_api.states import Desired, StartKind, State
from gateway.registry import Problem

FOREIGN_KEYS = "FOREIGN_KEYS"


def apply_cut(
    source: SourceRow,
    cut: LandedCut,
    syncs: dict[TableKey, SyncRow],
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
            sync.foreign_keys = asdict(event)
        if event.dump:
            _follow_dump(sync, ledger.event(source.id, sync.table_id, event))
    for file in cut.files:
        sync = syncs[source.id, file.database, file.table]
        sync.rows = clean_int64(sync.rows + file.rows)
        sync.bytes = clean_int64(sync.bytes + file.bytes)
        sync.position = ahead.get((file.database, file.table), here)
        sync.last_commit_timestamp_us = cut.last_commit_timestamp_us or sync.last_commit_timestamp_us
        sync.landed_at_us = at_us
        sync.last_cut = cut.cut
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


def _begin(sync: SyncRow, start: LandedStart, before: Mapping[int, Document], generation: int, ledger: Ledger) -> None:
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
    sync.start, sync.start_text, sync.altered = None, "", None
    if sync.failed:  # only when the log is replayed: the command that started it again had cleared this
        sync.failed, sync.problem, sync.state = False, None, State.STOPPED


def _follow_dump(sync: SyncRow, missing: str | None) -> None:
    if missing is not None:
        sync.earlier_rows_missing = missing
    if missing == "" and sync.state == State.DUMPING:
        sync.state = State.STREAMING


def _end(sync: SyncRow, stop: LandedStop, generation: int, at_us: int) -> bool:
    """Whether this stop ends the sync's present life; not if it was stopped or started again since."""
    sync.position = position_document(stop.position)
    if generation < sync.changed_generation:
        return False
    sync.failed, sync.state = True, State.FAILED
    sync.start, sync.start_text, sync.altered = None, "", None
    sync.problem = asdict(Problem(stop.code, stop.message, terminal=True, at_us=at_us))
    return True
