"""Re-reads: dumps that heal tables whose server changed rows without logging them.

Comes in: a table's events and the ends of its dumps, in the transaction that applies their log entry; columns that a
filter, or the policy of the host, leaves out no more, in the transaction that takes the agent's report; and stops of a
lake that go on with a dump, in the transaction that takes its report, or that applies the entry with which their sync
runs or the agent's policy is known. Goes out: a note in the table's sync, which says since where and why earlier rows
may be stale, and a dump that is ordered for it. The note is durable with the entry or the report. A dump covers the
causes that stand before its start; when it is done they leave the note, and a cause that came after its start gets one
more dump. So several causes share a dump, and a table has one at a time. A kill leaves the entry or the report applied,
or to be applied again; both give the same note, and the dump is ordered with it. More dumps in an hour than the agent
allows stop the table: something changes its rows again and again. Those of one hour wait longer and longer, so that the
bound is not met while a load that a dump can't pass goes by. Where all causes are gaps of the log, the table may be
compared with its source instead (`comparisons`), and what differs is read again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from menura.instants import now_us
from menura.lake_report import LakeTable
from menura.landing import LandedEvent
from menura.naming import sync_anew
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from controlplane_api import comparisons, dumps
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document, position_text
from controlplane_api.dump_lives import OF_PARTS, REREAD, VERIFICATION, create_dumps, delete_dumps
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, CommittedPosition, Dump, LakeStop, Source, SourceTable, Sync, Tenant
from controlplane_api.states import REREAD_LIMIT, Desired, DumpEnd
from controlplane_api.syncs import begin_anew, fail_tables, is_syncing, lock_source
from gateway.registry import Problem

#: of an hour, that do not wait
PROMPT_REREADS = 3
#: of the first that waits; each later one waits twice as long
FIRST_DELAY_SECONDS = 5
#: of one note: the first ones and the newest
KEPT_CAUSES = 8
HOUR_US = 3_600_000_000
LOG_GAP = "LOG_GAP"
#: of a cause's position, as of an event's
MAX_POSITION_CHARS = 1_024
#: ended re-reads of a table that are remembered, beyond those of the last hour
KEPT_DUMPS = 20


def noted(note: Mapping[str, Any] | None, event: LandedEvent) -> Document | None:
    """The sync's note after the event; None where every row is the source's.

    {"reread": whether a dump is ordered for it, "most_per_hour": of those, "more": causes left out here,
    "causes": [{"gsn", "position", "why", "at_us", "of_lake": that it is a lake's stop, "gap": that it is one of the
    log}], the oldest first}; beside it what `comparisons` keeps there.
    """
    if event.kind == "DUMPED":
        return comparisons.covered(note, event.removes_rows_before_gsn or event.gsn)
    before = _of_lakes(note) if event.removes_rows else note
    if not event.unlogged_changes:
        return dict(before) if before is not None else None
    cause = {
        "gsn": event.gsn, "position": event.position, "why": event.unlogged_changes, "at_us": event.commit_timestamp_us
    }  # fmt: skip
    if event.kind == LOG_GAP:
        cause["gap"] = True
    return _with_cause(before, cause, event.most_rereads_per_hour if event.reread else 0)


def _with_cause(note: Mapping[str, Any] | None, cause: Document, most_per_hour: int) -> Document:
    """`most_per_hour`: re-reads for this cause; 0: it is only noted."""
    causes, more = ([*note["causes"], cause], note["more"]) if note is not None else ([cause], 0)
    if len(causes) > KEPT_CAUSES:
        del causes[KEPT_CAUSES // 2]
        more += 1
    return {
        "reread": most_per_hour > 0 or (note is not None and note["reread"]),
        "most_per_hour": most_per_hour or (note["most_per_hour"] if note is not None else 0),
        "more": more,
        "causes": causes,
        **{name: note[name] for name in comparisons.MARKS if note is not None and name in note},
    }


def _of_lakes(note: Mapping[str, Any] | None) -> Document | None:
    """What is left when all rows are removed: a lake that has stopped goes on with a dump alone."""
    causes = [cause for cause in note["causes"] if cause.get("of_lake")] if note is not None else []
    return {**comparisons.without_marks(note), "causes": causes, "more": 0} if note is not None and causes else None


@dataclass(frozen=True, slots=True)
class Widened:
    """Columns of a table come from now on that did not before."""

    #: folded names of those that the filter left out, or the source's log lacked
    columns: Collection[str]
    #: whether others stayed on the host, whose names nobody has told
    is_freed: bool
    #: of re-reads that the agent lets be ordered for that
    most_per_hour: int

    def why(self, there: Sequence[str]) -> str:
        """`there`: the table's columns; none: they are not known. '' where it has none of these."""
        names = [name for name in there if name.casefold() in self.columns] if there else sorted(self.columns)
        left_out = [f"{', '.join(names[:KEPT_CAUSES])} did not come"] if names else []
        stayed = ["the policy of the database's host kept columns back"] if self.is_freed else []
        says = " and ".join([*left_out, *stayed])
        return f"{says} until here, so earlier rows have no value of it" if says else ""


def note_widened(connection: Connection, source_id: int, widened: Mapping[int, Widened], at_us: int) -> None:
    """What comes of these tables from now on. The caller holds the source's row."""
    if not widened:
        return
    end = connection.execute(_END.where(CommittedPosition.source_id == source_id)).first()
    noted: list[int] = []
    for begin in range(0, len(widened), LOOKUP_ROWS):
        of_part = Sync.table_id.in_(list(widened)[begin : begin + LOOKUP_ROWS])
        for row in connection.execute(_COLUMNS_OF_SYNC.where(of_part)).all():
            told = widened[row.table_id]
            why = told.why([str(column["name"]) for column in row.columns])
            if not why or end is None:
                continue
            cause = {"gsn": end.last_gsn, "position": position_text(end.position)[:MAX_POSITION_CHARS], "why": why}
            note = _with_cause(row.unlogged, cause | {"at_us": at_us}, told.most_per_hour)
            connection.execute(update(Sync).where(Sync.table_id == row.table_id).values(unlogged=note))
            noted.append(row.table_id)
    order_due(connection, noted, at_us)


_END = select(CommittedPosition.last_gsn, CommittedPosition.position)
_COLUMNS_OF_SYNC = select(Sync.table_id, Sync.unlogged, SourceTable.columns).join_from(Sync, SourceTable)


def lock_sources(connection: Connection, tables: Sequence[LakeTable]) -> None:
    """Those sources of the tables that are known, in one order."""
    if not tables:
        return
    named = among((Tenant.name, Source.name), {(table.tenant, table.source) for table in tables})
    for source_id in (
        connection.execute(select(Source.id).join(Tenant).where(named).order_by(Source.id)).scalars().all()
    ):
        lock_source(connection, source_id)


def note_stops_of_lake(connection: Connection, lake_id: int, tables: Sequence[LakeTable]) -> list[int]:
    """`note_stops` of these tables in one lake."""
    names = [(table.tenant, table.source, table.database, table.table) for table in tables]
    of_table = among((LakeStop.tenant, LakeStop.source, LakeStop.database, LakeStop.name), names)
    return _note_stops(connection, LakeStop.lake_id == lake_id, of_table)


def note_stops(connection: Connection, table_ids: Sequence[int]) -> list[int]:
    """Note the dumps with which lakes go on with these tables, each stop once, where the agents' policy lets it.

    A table whose sync does not run, or whose policy is not known, is asked for when that changes, which the cut log
    says. Gives the tables to `order_due`; the caller holds their sources' rows.
    """
    found: list[int] = []
    for begin in range(0, len(table_ids), LOOKUP_ROWS):
        found += _note_stops(connection, Sync.table_id.in_(table_ids[begin : begin + LOOKUP_ROWS]))
    return found


def _note_stops(connection: Connection, *which: ColumnElement[bool]) -> list[int]:
    notes: dict[int, Document | None] = {}
    changed: list[int] = []
    for row in connection.execute(_UNASKED.where(*which)).all():
        note = notes.setdefault(row.table_id, row.unlogged)
        gsn = row.gsn or row.last_gsn or 0
        asked = is_syncing(row) and row.lake_rereads_per_hour > 0
        if asked and not _is_coming(connection, row.table_id, note, gsn):
            position = position_text(row.position)[:MAX_POSITION_CHARS]
            why = f"a lake stopped it: {row.message}"
            cause = {"gsn": gsn, "position": position, "why": why, "at_us": row.at_us, "of_lake": True}
            notes[row.table_id] = note = _with_cause(note, cause, row.lake_rereads_per_hour)
            connection.execute(update(Sync).where(Sync.table_id == row.table_id).values(unlogged=note))
            changed.append(row.table_id)
        if asked or gsn != row.gsn:
            stop = [getattr(LakeStop, name) == getattr(row, name) for name in _STOP]
            connection.execute(update(LakeStop).where(*stop).values(gsn=gsn, asked=asked))
    return list(dict.fromkeys(changed))


_STOP = ("lake_id", "tenant", "source", "database", "name")
_UNASKED = (
    select(
        *(getattr(LakeStop, name) for name in (*_STOP, "gsn", "message", "at_us")),
        Sync.table_id, Sync.desired, Sync.failed, Sync.unlogged, Sync.lake_rereads_per_hour,
        CommittedPosition.last_gsn, CommittedPosition.position,
    )
    .join_from(LakeStop, Tenant, Tenant.name == LakeStop.tenant)
    .join(Source, and_(Source.tenant_id == Tenant.id, Source.name == LakeStop.source))
    .join(
        SourceTable,
        and_(
            SourceTable.source_id == Source.id,
            SourceTable.database == LakeStop.database,
            SourceTable.name == LakeStop.name,
        ),
    )
    .join(Sync, Sync.table_id == SourceTable.id)
    .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
    .where(LakeStop.reread.is_(True), LakeStop.asked.is_(False))
    .order_by(Sync.table_id, LakeStop.lake_id)
)  # fmt: skip


def _is_coming(connection: Connection, table_id: int, note: Mapping[str, Any] | None, gsn: int) -> bool:
    """Whether a dump that begins above this number is noted, or is done. One that runs may fail: it needs the note.

    A lake's cause without a dump is one whose dump somebody has cancelled; that a lake says it again asks for none.
    """
    causes = [cause for cause in note["causes"] if cause["gsn"] >= gsn] if note is not None else []
    if note is not None and any(note["reread"] or cause.get("of_lake") for cause in causes):
        return True
    begun = (Dump.table_id == table_id, Dump.started_gsn > gsn, Dump.state == DumpEnd.DONE)
    copies = select(Dump.id).where(*begun, Dump.cause.not_in(OF_PARTS))
    return connection.execute(copies.limit(1)).first() is not None


def cancel(connection: Connection, source_id: int, uuid: str) -> bool:
    """End a dump where it is; whether it was not cancelled already.

    A table that needs a re-read gets one where the dump was a user's. A re-read that is cancelled is not repeated.
    """
    cancelled = dumps.cancel(connection, source_id, uuid)
    if cancelled:
        order_due(connection, [dumps.dump_of(connection, source_id, uuid).table_id], now_us())
    return cancelled


def order_due_of(connection: Connection, source_id: int, table_ids: Sequence[int], at_us: int) -> None:
    """The same; the source's row gets locked."""
    lock_source(connection, source_id)
    order_due(connection, table_ids, at_us)


def order_due(connection: Connection, table_ids: Sequence[int], at_us: int, *, compares: bool = False) -> None:
    """Order a dump for each of these tables that needs one and has none; the caller holds their sources' rows.

    `compares`: or begin to compare it, which may take the dump's place. What has begun goes on in either case.
    """
    for begin in range(0, len(table_ids), LOOKUP_ROWS):
        some = table_ids[begin : begin + LOOKUP_ROWS]
        comparisons.follow(connection, some, at_us)
        comparisons.end_left(connection, some, at_us)
        rows = [row for row in _needing(connection, some) if row.unlogged["reread"]]
        rows = [row for row in rows if not row.unlogged.get("comparison")]
        ending = comparisons.ended_by_dumps(connection, rows)
        counts = _counts(connection, rows, ending, at_us - HOUR_US)
        most = {row.table_id: row.unlogged["most_per_hour"] for row in rows}
        spent = [row for row in rows if counts.get(row.table_id, 0) >= most[row.table_id]]
        left = [row for row in rows if row not in spent]
        delays = {id_: delay_seconds(counts.get(id_, 0), most[id_]) for id_ in (row.table_id for row in left)}
        if compares:
            left = comparisons.left_to_dumps(connection, left, delays, at_us)
        for source_id in dict.fromkeys(row.source_id for row in rows):
            of_source = [row for row in spent if row.source_id == source_id]
            _order(connection, source_id, [row for row in left if row.source_id == source_id], ending, delays, at_us)
            named = {(row.database, row.name): _limit_problem(row, at_us) for row in of_source}
            fail_tables(connection, source_id, named)


def _order(
    connection: Connection,
    source_id: int,
    rows: Sequence[AnyRow],
    ending: Collection[int],
    delays: Mapping[int, int],
    at_us: int,
) -> None:
    """`ending`: tables whose comparison ends so, with which the dump counts.

    `delays`: in seconds, by table. One that begins anew with its dump has none: nothing of it streams meanwhile.
    """
    keyed = {row.table_id for row in rows if dumps.has_unique_key(row.columns, row.table_keys)}
    delays = {table_id: delays[table_id] for table_id in keyed}
    made: dict[int, str] = {}
    for ends_comparison in (False, True):  # the last step of one counts with it: see `_counts`
        tables = [row.table_id for row in rows if (row.table_id in ending) is ends_comparison]
        made |= create_dumps(
            connection, source_id, tables, cause=REREAD, at_us=at_us, delay_seconds=delays, compares=ends_comparison
        )
    anew = {(row.database, row.name): made[row.table_id] for row in rows if row.table_id not in keyed}
    begin_anew(connection, source_id, anew)
    for row in rows:
        _forget_old(connection, row.table_id, at_us - HOUR_US)


def delay_seconds(ordered: int, most_per_hour: int) -> int:
    """How long the next re-read waits after so many within the hour.

    >>> [delay_seconds(ordered, 12) for ordered in range(12)], delay_seconds(100, 3_600)
    ([0, 0, 0, 5, 10, 20, 40, 80, 160, 300, 300, 300], 1)
    """
    if ordered < PROMPT_REREADS:
        return 0
    doubled: int = FIRST_DELAY_SECONDS << min(ordered - PROMPT_REREADS, 10)
    return min(doubled, HOUR_US // 1_000_000 // most_per_hour)


def _forget_old(connection: Connection, table_id: int, before_us: int) -> None:
    of_table = (Dump.table_id == table_id, Dump.cause == REREAD, Dump.state != DumpEnd.RUNNING)
    ended = select(Dump.id).where(*of_table, Dump.created_at_us <= before_us).order_by(Dump.id.desc())
    delete_dumps(connection, list(connection.execute(ended.offset(KEPT_DUMPS)).scalars()))


def _needing(connection: Connection, table_ids: Sequence[int]) -> list[AnyRow]:
    """Tables with a note whose sync runs and has begun, and that have no dump under way."""
    running = select(Dump.table_id).where(Dump.table_id.in_(table_ids), Dump.state == DumpEnd.RUNNING)
    rows = connection.execute(
        select(
            Sync.table_id, Sync.source_id, Sync.unlogged, SourceTable.database, SourceTable.name, SourceTable.columns,
            SourceTable.keys.label("table_keys"), SourceTable.estimated_rows, Sync.earlier_rows_missing,
            Source.name.label("source"),
        )
        .join_from(Sync, SourceTable)
        .join(Source, Source.id == Sync.source_id)
        .where(
            Sync.table_id.in_(table_ids), Sync.desired == Desired.SYNCING, Sync.failed.is_(False), Sync.start.is_(None),
            Sync.unlogged.is_not(None), Sync.table_id.not_in(running),
        )
        .order_by(Sync.table_id)
    )  # fmt: skip
    return list(rows)


def _counts(connection: Connection, rows: Sequence[AnyRow], ending: Collection[int], since_us: int) -> dict[int, int]:
    """How many re-reads and comparisons of each were ordered since then. A dump that ends a comparison counts with it,
    and so does the one that is to end it now."""
    is_reread = and_(Dump.cause == REREAD, Dump.compares.is_(False))
    own = [row.unlogged["began"] for row in rows if row.table_id in ending]
    begins_comparison = and_(Dump.compares, Dump.cause == VERIFICATION, Dump.focus.is_(None), Dump.uuid.not_in(own))
    counted = connection.execute(
        select(Dump.table_id, func.count().label("ordered"))
        .where(
            Dump.table_id.in_([row.table_id for row in rows]), Dump.created_at_us > since_us,
            or_(is_reread, begins_comparison),
        )
        .group_by(Dump.table_id)
    )  # fmt: skip
    return {row.table_id: row.ordered for row in counted}


def _limit_problem(row: AnyRow, at_us: int) -> Problem:
    newest = row.unlogged["causes"][-1]
    words = (
        f"Ordering a re-read of {row.database}.{row.name}: {row.unlogged['most_per_hour']} were ordered within an hour,"
        f" which is as many as the agent's dump.max_rereads_per_hour allows; the newest cause, at {newest['position']}:"
        f" {newest['why']}. The lake has the table up to here, with rows that may be stale. Find out what changes its"
        " rows without logging them, or raise dump.max_rereads_per_hour of the source in the agent's configuration and"
        " restart the agent; then run:"
        f" {sync_anew(row.source, row.database, row.name)}"
    )
    return Problem(REREAD_LIMIT, words, terminal=True, at_us=at_us)
