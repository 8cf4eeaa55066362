"""What the gateway asks and says of a source's dumps: the desired ones, their plans, states and failures.

Comes in: reports of agents, within the caller's transaction, which holds the source's row except for states. Goes out:
the dumps that are not over with what the ledger says is left of each (`dump_ledger` moves it). Commands are in `dumps`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from menura.bounds import clean_int64, clean_text
from menura.instants import now_us
from menura.landed_digest import decode_focus
from menura.naming import dump_anew
from sqlalchemy import Connection, insert, select, update

from controlplane_api import comparisons, rereads
from controlplane_api.documents import insert_into
from controlplane_api.dump_lives import OF_PARTS, REPAIR, VERIFICATION, end_dumps, grow_dump_generation
from controlplane_api.models import AnyRow, Dump, DumpRange, DumpStatus, Quarantine, Source, SourceTable, Sync, Tenant
from controlplane_api.states import DumpEnd, StartKind
from controlplane_api.syncs import begin_anew
from gateway.registry import DumpDesired, DumpPlanned, DumpsDesired, DumpSeen, KeyRange, Problem, SourceKey


def desired(connection: Connection, key: SourceKey) -> DumpsDesired:
    """See `gateway.registry.Registry.dumps`."""
    # The generation first and a dump before its ranges: what changes between comes with a newer generation, and a
    # plan is never seen without its ranges.
    source = connection.execute(
        select(Source.id, Source.dump_generation, Quarantine.source_id.label("quarantined"))
        .join_from(Source, Tenant)
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .where(Tenant.name == key.tenant, Source.name == key.source)
    ).first()
    if source is None or source.quarantined is not None:
        return DumpsDesired(0 if source is None else source.dump_generation, ())
    running = (Dump.source_id == source.id, Dump.state == DumpEnd.RUNNING)
    rows = connection.execute(
        select(Dump, SourceTable.database, SourceTable.name)
        .join(SourceTable, SourceTable.id == Dump.table_id)
        .where(*running)
        .order_by(Dump.id)
    ).all()
    ranges: dict[int, list[AnyRow]] = defaultdict(list)
    for each in connection.execute(
        select(DumpRange).join(Dump, Dump.id == DumpRange.dump_id).where(*running).order_by(DumpRange.number)
    ):
        ranges[each.dump_id].append(each)
    return DumpsDesired(source.dump_generation, tuple(_desired(row, ranges[row.id]) for row in rows))


def record_plan(connection: Connection, source_id: int, dump: str, plan: DumpPlanned, at_us: int) -> None:
    """The first one counts; one that needs the log for longer than the server keeps it ends the dump, if not forced."""
    found = _running(connection, source_id, dump)
    if found is None or found.planned_at_us is not None:
        return
    values = {
        "planned_at_us": at_us,
        "key": [clean_text(column) for column in plan.key],
        "least_key": plan.least_key,
        "greatest_key": plan.greatest_key,
        "warning": clean_text(plan.warning),
        "estimated_rows": _clean_optional(plan.estimated_rows),
        "estimated_bytes": _clean_optional(plan.estimated_bytes),
        "runway_seconds": _clean_optional(plan.runway_seconds),
        "needed_seconds": _clean_optional(plan.needed_seconds),
    }
    connection.execute(update(Dump).where(Dump.id == found.id).values(values))
    if plan.ranges:
        rows = [{"dump_id": found.id, "reached": each.lower, **asdict(each)} for each in plan.ranges]
        connection.execute(insert(DumpRange), rows)
    short = _shortage(connection, found, plan)
    if short and not found.forced:
        problem = Problem("DUMP_RUNWAY_SHORT", short, terminal=True, at_us=at_us)
        _failed(connection, source_id, found, DumpEnd.REFUSED, problem, at_us)
        return
    if not plan.key and found.cause in OF_PARTS:  # no agent of ours plans one so
        is_repair = found.cause == REPAIR
        words = "Reading ranges of a table again" if is_repair else "Verifying a table"
        words += ": it has no key in whose order it could be read. Nothing was compared or changed."
        code = "REPAIR_IMPOSSIBLE" if is_repair else "VERIFICATION_IMPOSSIBLE"
        problem = Problem(code, words, terminal=True, at_us=at_us)
        _failed(connection, source_id, found, DumpEnd.FAILED, problem, at_us)
        return
    why = comparisons.why_cancelled(connection, found, plan.key) if found.cause in OF_PARTS else ""
    if why:
        problem = Problem("VERIFICATION_IMPOSSIBLE", f"A dump follows in its place: {why}.", terminal=True, at_us=at_us)
        _failed(connection, source_id, found, DumpEnd.CANCELLED, problem, at_us)
        return
    if not plan.key:
        _begin_sync_with(connection, source_id, found)
    grow_dump_generation(connection, source_id)


def record_status(connection: Connection, key: SourceKey, dumps: Sequence[DumpSeen], at_us: int) -> None:
    """Of dumps that are not over; the others' are late."""
    rows_of_source = connection.execute(
        select(Dump.id, Dump.uuid)
        .join(Source, Source.id == Dump.source_id)
        .join(Tenant)
        .where(Tenant.name == key.tenant, Source.name == key.source, Dump.state == DumpEnd.RUNNING)
    )
    ids = {row.uuid: row.id for row in rows_of_source}
    seen = {ids[each.dump]: each for each in dumps if each.dump in ids}
    if not seen:
        return
    rows = [
        {
            "dump_id": dump_id,
            "at_us": at_us,
            "state": clean_text(each.state),
            "reason": clean_text(each.reason),
            "held": each.held,
            "rows_per_second": clean_int64(each.rows_per_second),
            "bytes_per_second": clean_int64(each.bytes_per_second),
            "uncommitted_rows": clean_int64(each.uncommitted_rows),
        }
        for dump_id, each in sorted(seen.items())
    ]
    statement = insert_into(connection, DumpStatus)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[DumpStatus.dump_id],
            set_={name: statement.excluded[name] for name in rows[0] if name != "dump_id"},
        ),
        rows,
    )


def record_failed(connection: Connection, source_id: int, dump: str, problem: Problem, at_us: int) -> None:
    """Ignored when it is over."""
    found = _running(connection, source_id, dump)
    if found is not None:
        _failed(connection, source_id, found, DumpEnd.FAILED, problem, at_us)


def _failed(connection: Connection, source_id: int, dump: AnyRow, end: DumpEnd, problem: Problem, at_us: int) -> None:
    """A table that needs a re-read gets another one, as far as its bound allows."""
    end_dumps(connection, source_id, [dump.id], end, problem, at_us)
    rereads.order_due(connection, [dump.table_id], at_us)


def _begin_sync_with(connection: Connection, source_id: int, dump: AnyRow) -> None:
    """A table that is read in one snapshot begins with it, also when its stream runs: the two fit nowhere else."""
    sync = connection.execute(
        select(SourceTable.database, SourceTable.name, Sync.start, Sync.start_text)
        .join_from(Sync, SourceTable)
        .where(Sync.table_id == dump.table_id)
    ).one()
    if (sync.start, sync.start_text) != (StartKind.DUMP, dump.uuid):
        begin_anew(connection, source_id, {(sync.database, sync.name): dump.uuid})


def _running(connection: Connection, source_id: int, dump: str) -> AnyRow | None:
    return connection.execute(
        select(Dump).where(Dump.source_id == source_id, Dump.uuid == dump, Dump.state == DumpEnd.RUNNING)
    ).first()


def _shortage(connection: Connection, dump: AnyRow, plan: DumpPlanned) -> str:
    """Why the dump is refused; empty: it is not."""
    if plan.runway_seconds is None or plan.needed_seconds is None or plan.needed_seconds <= plan.runway_seconds:
        return ""
    row = connection.execute(
        select(Source.name.label("source"), SourceTable.database, SourceTable.name)
        .join_from(SourceTable, Source)
        .where(SourceTable.id == dump.table_id)
    ).one()
    command = dump_anew(row.source, row.database, row.name)
    return (
        f"Planning the dump of {row.database}.{row.name}: it needs the server's log for about {plan.needed_seconds} s,"
        f" and the server keeps it for about {plan.runway_seconds} s: changes would be lost before they are read."
        f" {_sentence(plan.warning)}Nothing of it was dumped; its stream goes on as it was. Let the server keep its log"
        f" longer; then run: {command}; or begin it all the same: {command} --force"
    )


def _sentence(text: str) -> str:
    return f"{clean_text(text).rstrip('.')}. " if text else ""


def _clean_optional(number: int | None) -> int | None:
    return None if number is None else clean_int64(number)


def _left_seconds(row: AnyRow) -> int:
    """Of the delay before it begins; never more than all of it, whatever the clock does."""
    if row.planned_at_us is not None:
        return 0
    waited = (now_us() - row.created_at_us) // 1_000_000
    return int(min(row.delay_seconds, max(0, row.delay_seconds - waited)))


def _desired(row: AnyRow, ranges: Sequence[AnyRow]) -> DumpDesired:
    plan = None
    if row.key:  # of a dump in one snapshot there is nothing to go on from
        plan = DumpPlanned(
            key=tuple(row.key),
            ranges=tuple(KeyRange(each.number, each.lower, each.upper) for each in ranges),
            estimated_rows=row.estimated_rows,
            estimated_bytes=row.estimated_bytes,
            runway_seconds=row.runway_seconds,
            needed_seconds=row.needed_seconds,
            warning=row.warning,
            least_key=row.least_key,
            greatest_key=row.greatest_key,
        )
    return DumpDesired(
        dump=row.uuid,
        database=row.database,
        table=row.name,
        priority=row.priority,
        paused=row.paused,
        workers=row.workers,
        rows_per_second=row.rows_per_second,
        bytes_per_second=row.bytes_per_second,
        started_gsn=row.started_gsn,
        plan=plan,
        remaining=tuple(KeyRange(each.number, each.reached, each.upper) for each in ranges if not each.done),
        next_chunk=row.next_chunk,
        begins_in_seconds=_left_seconds(row),
        verifies=row.cause == VERIFICATION,
        focus=None if row.focus is None else decode_focus(row.focus),
        tells_anew=row.compares and row.cause == VERIFICATION,
    )
