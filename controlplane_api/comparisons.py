"""Comparisons: behind a gap of its log a table is verified, and what is not proven repaired, in place of a dump.

- Comes in: notes of `rereads` whose causes are gaps (LOG_GAP) alone, of large tables that one lake has wholly; verdicts
  of that lake; ends of verifications and repairs. The caller holds the sources' rows.
- Goes out: a verification of the whole table; where its verdict names the ranges outside of which all was equal, their
  repair; behind that a verification of these. Once one is equal, the note loses the gaps below the number that the sink
  tells with it (`since_gsn`), and no others.
- Durable is each step with its order: a row of `dump` that `compares`, and in the note `comparison`, its UUID; `began`,
  that of the first; `compared_in`, the lake whose word counts; `compared_key`, the columns of the ranges; and
  `verifications`, how many there were.
- A kill leaves a step ordered or not, and what it follows from stays: the log's entry, the verdict, the dump's end. So
  whatever happens next to the table orders the step; where nothing happens, the gateway's clock does (`overdue`).
- A dump brings the table's rows wherever a comparison can't be, or does not end: `instead` in the note says why.

Rows of before the gap complete partial changes until they are compared. They do it wrongly only in leaves that are read
again; where such a change gives a row another key, the lake does not say that it is equal.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from menura.lake_report import LakeTable
from menura.landed_digest import LandedFocus, decode_focus
from menura.naming import TableName
from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, select, update
from sqlalchemy.orm import aliased

from controlplane_api import verification_schedules
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document
from controlplane_api.dump_lives import (
    REPAIR,
    REREAD,
    VERIFICATION,
    DumpOptions,
    create_dumps,
    create_focused,
    delete_dumps,
    end_dumps,
)
from controlplane_api.dumps import has_unique_key
from controlplane_api.lookups import among
from controlplane_api.models import (
    AnyRow,
    Dump,
    Lake,
    LakeSource,
    LakeStop,
    Lease,
    Source,
    SourceTable,
    Sync,
    Tenant,
    Verdict,
)
from controlplane_api.states import Desired, DumpEnd, Proof

logger = logging.getLogger(__name__)

#: a smaller table is dumped: its rows are sooner there than a verdict
LEAST_ROWS = 50_000
#: that are repaired: a part of the table's rows, and how many, since a proof reads them as one chunk
MOST_PART, MOST_ROWS = 1 / 2, 1_000_000
#: since its last report, from which on a lake is not waited for
LAKE_SECONDS = 300
#: behind the end of what it reads, for a verdict
VERDICT_SECONDS = 900
#: of one note
MOST_VERIFICATIONS = 6
#: of these, that do not wait; each later one waits so much longer
PROMPT, DELAY_SECONDS = 2, 10
#: leads the key of a plan by which a verification reads the table in one snapshot (menura.v1.DumpPlan)
IN_ONE_SNAPSHOT = "*"
#: a note's own, beside its causes
MARKS = ("comparison", "began", "compared_in", "compared_key", "verifications", "instead")
#: ended steps of a table that are remembered, beyond those of the last hour, by which `rereads` bounds them
KEPT_STEPS = 20
HOUR_US = 3_600_000_000
_COMPARISON: ColumnElement[str] = Sync.unlogged["comparison"].as_string()
_OTHER = aliased(Dump)


def left_to_dumps(
    connection: Connection, rows: Sequence[AnyRow], delays: Mapping[int, int], at_us: int
) -> list[AnyRow]:
    """Of these tables, which need a re-read and have neither a dump nor a comparison under way, those whose rows a dump
    has to bring. Of the others a comparison begins here, by table after so many seconds.
    """
    asked = [row for row in rows if _is_of_gaps(row.unlogged) and not row.unlogged.get("instead")]
    large = [row for row in asked if (row.estimated_rows or 0) >= LEAST_ROWS]
    begun: set[int] = set()
    for source_id in dict.fromkeys(row.source_id for row in large):
        of_source = [row for row in large if row.source_id == source_id]
        begun |= _begin(connection, source_id, of_source, delays, at_us)
    return [row for row in rows if row.table_id not in begun]


def _begin(
    connection: Connection, source_id: int, rows: Sequence[AnyRow], delays: Mapping[int, int], at_us: int
) -> set[int]:
    """Tables whose comparison begins; the note of each other one says why not."""
    facts = _facts(connection, source_id, at_us)
    whys = {row.table_id: _why_not(row, facts) for row in rows}
    begun = [table_id for table_id, why in whys.items() if not why]
    options, closed_seconds = verification_schedules.reading(connection, source_id, at_us)
    waits = {table_id: max(closed_seconds, delays[table_id]) for table_id in begun}
    made = create_dumps(connection, source_id, begun, options, VERIFICATION, at_us, waits, compares=True)
    first = {"compared_in": facts.lake_id, "verifications": 1}
    notes = {
        row.table_id: {**row.unlogged, "instead": whys[row.table_id]}
        if row.table_id not in made
        else {**row.unlogged, "comparison": made[row.table_id], "began": made[row.table_id], **first}
        for row in rows
    }
    _store(connection, notes)
    return set(begun)


def follow(connection: Connection, table_ids: Sequence[int], at_us: int) -> None:
    """Take the comparisons of these tables as far as they come now."""
    rows = _compared(connection, table_ids)
    if not rows:
        return
    told = _told(connection, rows)
    lakes = _lakes(connection, {(row.tenant, row.source) for row in rows})
    are_equal = {row.source_id for row in rows if row.table_id in told and told[row.table_id].verdict == Proof.EQUAL}
    families = {source_id: _family(connection, source_id) for source_id in sorted(are_equal)}
    notes: dict[int, Document | None] = {}
    for row in rows:
        family = families.get(row.source_id)
        has_keys = family is None or (row.database, row.name) in family
        at = _Step(row, told.get(row.table_id), lakes[row.tenant, row.source], has_keys, at_us)
        note = at.note_after(connection)
        if note != row.unlogged:
            notes[row.table_id] = note
            if note is None or "comparison" not in note:
                _forget_old(connection, row.table_id, at_us - HOUR_US)
    _store(connection, notes)


def ended_by_dumps(connection: Connection, rows: Sequence[AnyRow]) -> set[int]:
    """Of these tables those whose comparison is to end in a dump, for the first time."""
    began = {row.unlogged["began"]: row.table_id for row in rows if "began" in row.unlogged}
    if not began:
        return set()
    followed = exists(1).where(_OTHER.table_id == Dump.table_id, _OTHER.cause == REREAD, _OTHER.id > Dump.id)
    return set(connection.execute(select(Dump.table_id).where(Dump.uuid.in_(list(began)), ~followed)).scalars())


def end_left(connection: Connection, table_ids: Sequence[int], at_us: int) -> None:
    """End what these tables' notes wait for no more, so that a dump which they need need not wait for it."""
    is_awaited = exists(1).where(Sync.table_id == Dump.table_id, Dump.uuid == _COMPARISON)
    is_left = (Dump.compares, Dump.cause != REREAD, Dump.state == DumpEnd.RUNNING, ~is_awaited)
    left: dict[int, list[int]] = {}
    for source_id, id_ in connection.execute(
        select(Dump.source_id, Dump.id).where(Dump.table_id.in_(table_ids), *is_left).order_by(Dump.id)
    ):
        left.setdefault(source_id, []).append(id_)
    for source_id, ids in left.items():
        end_dumps(connection, source_id, ids, DumpEnd.CANCELLED, None, at_us)


def compared_of(connection: Connection, tables: Iterable[LakeTable]) -> list[int]:
    """Of these the ids of those that are compared."""
    names = {(table.tenant, table.source, table.database, table.table) for table in tables}
    named = among((Tenant.name, Source.name, SourceTable.database, SourceTable.name), names)
    statement = (
        select(Sync.table_id)
        .join_from(Sync, SourceTable)
        .join(Source, Source.id == Sync.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .where(named, Sync.unlogged.is_not(None), _COMPARISON.is_not(None))
        .order_by(Sync.table_id)
    )
    return list(connection.execute(statement).scalars()) if names else []


def why_cancelled(connection: Connection, dump: AnyRow, key: Sequence[str]) -> str:
    """Why what is planned with this key can't take a dump's place; empty: it can, or does not."""
    note = connection.execute(select(Sync.unlogged).where(Sync.table_id == dump.table_id)).scalar()
    if note is None or note.get("comparison") != dump.uuid:
        return ""
    if not key or key[0] == IN_ONE_SNAPSHOT:
        return "it would be compared in one snapshot, which names no ranges"
    compared = note.get("compared_key", [])
    if list(key[: len(compared)]) != compared:
        return f"its key has changed since it was verified, which was by {', '.join(compared)}"
    return ""


def overdue(connection: Connection, is_owned: ColumnElement[bool], at_us: int) -> dict[int, list[int]]:
    """Tables of which a comparison has waited for a lake's word, by the sources whose `Lease` is so."""
    rows = connection.execute(
        select(Sync.source_id, Sync.table_id)
        .join(Dump, and_(Dump.table_id == Sync.table_id, Dump.uuid == _COMPARISON))
        .join(Source, Source.id == Sync.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .join(Lease, (Lease.tenant == Tenant.name) & (Lease.source == Source.name))
        .where(
            is_owned, Sync.unlogged.is_not(None), Sync.desired == Desired.SYNCING, Sync.failed.is_(False),
            Dump.state == DumpEnd.DONE, Dump.ended_at_us <= at_us - VERDICT_SECONDS * 1_000_000,
        )
        .order_by(Sync.source_id, Sync.table_id)
        .limit(LOOKUP_ROWS)
    )  # fmt: skip
    found: dict[int, list[int]] = {}
    for source_id, table_id in rows:
        found.setdefault(source_id, []).append(table_id)
    return found


def covered(note: Mapping[str, Any] | None, gsn: int) -> Document | None:
    """Without the causes below the number at which began what has healed them; another one gets a way of its own."""
    causes = [cause for cause in note["causes"] if cause["gsn"] >= gsn] if note is not None else []
    return {**without_marks(note), "causes": causes, "more": 0} if note is not None and causes else None


def without_marks(note: Mapping[str, Any]) -> Document:
    return {name: value for name, value in note.items() if name not in MARKS}


@dataclass(frozen=True, slots=True)
class _Step:
    """A comparison's newest one."""

    row: AnyRow
    #: the verdict of its lake
    told: AnyRow | None
    #: that follow the source
    lakes: Collection[int]
    #: with that of an equal table: it has foreign keys, or tables refer to it, or that is not known
    has_keys: bool
    at_us: int

    def note_after(self, connection: Connection) -> Document | None:
        """The note, after what is to follow now was ordered."""
        row = self.row
        note: Document = row.unlogged
        if row.state is None:
            return self._instead("the verification that was ordered is no longer known")
        if not _is_of_gaps(note):
            return self._instead("rows may be stale for another reason than a gap of the log too")
        if row.state == DumpEnd.RUNNING:
            return note
        if row.state != DumpEnd.DONE:
            return self._instead(f"the {row.cause} that was ordered ended: {row.state}")
        if row.is_read_since:
            return self._instead("a dump or a repair has read rows of it meanwhile")
        if row.cause == REPAIR:
            return self._then(connection, VERIFICATION, replace(decode_focus(row.focus), repaired_by=row.uuid))
        if self.lakes != {note["compared_in"]}:
            return self._instead("other lakes follow the source than before")
        if self.told is None:
            waits = self.at_us - (row.ended_at_us or self.at_us) < VERDICT_SECONDS * 1_000_000
            return note if waits else self._instead(f"the lake has not said for {VERDICT_SECONDS} s what it found")
        return self._judged(connection, self.told)

    def _judged(self, connection: Connection, told: AnyRow) -> Document | None:
        """After the verdict of the newest verification."""
        note = self.row.unlogged
        if told.verdict == Proof.EQUAL:
            if self.row.is_read:
                return dict(note)
            if not told.since_gsn:
                return self._instead("from when on it is equal was not told: the sink, gateway or agent is older")
            if self.has_keys:  # what they did an agent does not tell that was replaced by an older one meanwhile
                return self._instead("it has foreign keys since, or tables refer to it")
            return covered(note, told.since_gsn)
        if note["verifications"] >= MOST_VERIFICATIONS:
            return self._instead(f"after {MOST_VERIFICATIONS} verifications it is not known: {told.reason}")
        if self.row.focus is not None:  # behind its repair
            if told.leaves_differ or not told.leaves_unknown:
                return self._instead(f"it is not equal behind its repair: {told.reason}")
            return self._then(connection, VERIFICATION, decode_focus(self.row.focus))
        if told.unproven is None:
            return self._instead(f"which ranges differ is not known, or they are too many: {told.reason}")
        unproven = decode_focus(told.unproven)
        rows = sum(each.rows for each in unproven.ranges)
        if rows > min(MOST_PART * told.source_rows, MOST_ROWS) or not (unproven.ranges and unproven.since_gsn):
            return self._instead(f"{rows} rows of it would be read again")
        return self._then(connection, REPAIR, unproven)

    def _then(self, connection: Connection, cause: str, focus: LandedFocus) -> Document:
        """Once nothing else reads the table."""
        row, note = self.row, self.row.unlogged
        if not row.runs or row.is_read:
            return dict(note)
        count = note["verifications"] + (cause == VERIFICATION)
        options, delay = DumpOptions(), 0
        if cause == VERIFICATION:
            options, closed_seconds = verification_schedules.reading(connection, row.source_id, self.at_us)
            delay = max(closed_seconds, (count - PROMPT) * DELAY_SECONDS)
        where = (row.source_id, row.table_id)
        made = create_focused(connection, *where, options, cause, focus, self.at_us, delay, compares=True)
        key = row.key[: len(focus.kinds)] if cause == REPAIR else note["compared_key"]
        return {**note, "comparison": made, "compared_key": key, "verifications": count}

    def _instead(self, why: str) -> Document:
        """A dump follows."""
        logger.info("a dump follows a comparison: dump=%s because=%s", self.row.unlogged["comparison"], why)
        note = self.row.unlogged
        return {**without_marks(note), "began": note["began"], "instead": why}


def _compared(connection: Connection, table_ids: Sequence[int]) -> Sequence[AnyRow]:
    """Those that are, with their newest step. `is_read`: something reads them. `is_read_since`: a dump or a repair that
    is no step has, and was ordered behind this one: those of before have ended, and are not resumed."""
    is_other = and_(_OTHER.cause != VERIFICATION, _OTHER.compares.is_(False), _OTHER.state != DumpEnd.RUNNING)
    is_read_since = exists(1).where(_OTHER.table_id == Dump.table_id, is_other, _OTHER.id > Dump.id)
    running = select(Dump.table_id).where(Dump.table_id.in_(table_ids), Dump.state == DumpEnd.RUNNING)
    runs = and_(Sync.desired == Desired.SYNCING, Sync.failed.is_(False), Sync.start.is_(None))
    return connection.execute(
        select(
            Sync.table_id, Sync.source_id, Sync.unlogged,
            runs.label("runs"), Sync.table_id.in_(running).label("is_read"),
            is_read_since.label("is_read_since"),
            Dump.uuid, Dump.cause, Dump.state, Dump.focus, Dump.key, Dump.ended_at_us,
            Source.name.label("source"), Tenant.name.label("tenant"), SourceTable.database, SourceTable.name,
        )
        .join_from(Sync, SourceTable)
        .join(Source, Source.id == Sync.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .outerjoin(Dump, and_(Dump.table_id == Sync.table_id, Dump.uuid == _COMPARISON))
        .where(Sync.table_id.in_(table_ids), Sync.unlogged.is_not(None), _COMPARISON.is_not(None))
        .order_by(Sync.table_id)
    ).all()  # fmt: skip


def _forget_old(connection: Connection, table_id: int, before_us: int) -> None:
    """Steps of comparisons that are over."""
    of_table = (Dump.table_id == table_id, Dump.compares, Dump.state != DumpEnd.RUNNING)
    ended = select(Dump.id).where(*of_table, Dump.created_at_us <= before_us).order_by(Dump.id.desc())
    delete_dumps(connection, list(connection.execute(ended.offset(KEPT_STEPS)).scalars()))


def _told(connection: Connection, rows: Sequence[AnyRow]) -> dict[int, AnyRow]:
    """By table, what the lake that counts has said of the newest verification."""
    asked = {row.uuid: row for row in rows if row.state == DumpEnd.DONE and row.cause == VERIFICATION}
    verdicts = connection.execute(select(Verdict).where(Verdict.verification.in_(list(asked)))) if asked else ()
    found = {}
    for verdict in verdicts:
        row = asked[verdict.verification]
        name = (row.unlogged["compared_in"], row.tenant, row.source, row.database, row.name)
        if (verdict.lake_id, verdict.tenant, verdict.source, verdict.database, verdict.name) == name:
            found[row.table_id] = verdict
    return found


def _is_of_gaps(note: Mapping[str, Any]) -> bool:
    return not note["more"] and all(cause.get("gap") for cause in note["causes"])


@dataclass(frozen=True, slots=True)
class _SourceFacts:
    #: of the one lake that has the source
    lake_id: int | None
    #: why none of its tables can be compared; empty: some can
    why_not: str
    #: by table, the codes of those that the lake has stopped
    stopped: Mapping[TableName, str]
    #: tables that have foreign keys, and those that these refer to
    family: frozenset[TableName]


def _facts(connection: Connection, source_id: int, at_us: int) -> _SourceFacts:
    source = connection.execute(
        select(Tenant.name.label("tenant"), Source.name).join_from(Source, Tenant).where(Source.id == source_id)
    ).one()
    lakes = _lakes(connection, [(source.tenant, source.name)])[source.tenant, source.name]
    if len(lakes) != 1:
        why = "several lakes follow the source" if lakes else "no lake has told of its source"
        return _SourceFacts(None, why, {}, frozenset())
    (lake_id,) = lakes
    heard_at_us = connection.execute(select(Lake.received_at_us).where(Lake.id == lake_id)).scalar_one()
    silent = at_us - heard_at_us > LAKE_SECONDS * 1_000_000
    of_source = (LakeStop.lake_id == lake_id, LakeStop.tenant == source.tenant, LakeStop.source == source.name)
    stops = connection.execute(select(LakeStop.database, LakeStop.name, LakeStop.code).where(*of_source))
    stopped = {(stop.database, stop.name): stop.code for stop in stops}
    family = _family(connection, source_id)
    why = "" if family is not None else "not all foreign keys of the source are known"
    return _SourceFacts(lake_id, "the lake's sink does not report" if silent else why, stopped, family or frozenset())


def _family(connection: Connection, source_id: int) -> frozenset[TableName] | None:
    """Tables that have foreign keys, and those that these refer to; None: not all are known."""
    children = connection.execute(
        select(
            SourceTable.database, SourceTable.name, SourceTable.foreign_keys.label("seen"), Sync.foreign_keys,
            SourceTable.more_foreign_keys,
        )
        .join_from(Sync, SourceTable)
        .where(Sync.source_id == source_id)
    ).all()  # fmt: skip
    if any(child.more_foreign_keys for child in children):
        return None
    return frozenset(table for child in children for table in _related(child))


def _related(child: AnyRow) -> Iterator[TableName]:
    told = child.foreign_keys["foreign_keys"] if child.foreign_keys else []
    if child.foreign_keys is not None or child.seen:
        yield child.database, child.name
    for key in [*told, *child.seen]:
        database, table = key["parent"]
        yield database, table


def _why_not(row: AnyRow, source: _SourceFacts) -> str:
    """Why a dump has to bring its rows; empty: they can be compared."""
    if not row.columns or not has_unique_key(row.columns, row.table_keys):
        return "it has no key"
    if row.earlier_rows_missing:
        return f"the lake lacks rows of it: {row.earlier_rows_missing}"
    if (row.database, row.name) in source.family:
        return "it has foreign keys, or tables refer to it"
    if source.why_not:
        return source.why_not
    code = source.stopped.get((row.database, row.name))
    return f"the lake has stopped it: {code}" if code else ""


def _lakes(connection: Connection, sources: Collection[tuple[str, str]]) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = {source: set() for source in sources}
    named = LakeSource.source.in_({source for _, source in sources})
    for row in connection.execute(select(LakeSource.tenant, LakeSource.source, LakeSource.lake_id).where(named)):
        if (row.tenant, row.source) in found:
            found[row.tenant, row.source].add(row.lake_id)
    return found


def _store(connection: Connection, notes: Mapping[int, Mapping[str, Any] | None]) -> None:
    statement = update(Sync).where(Sync.table_id == bindparam("of")).values(unlogged=bindparam("note"))
    some = [{"of": table_id, "note": note} for table_id, note in notes.items()]
    if notes:
        connection.execute(statement, some)
