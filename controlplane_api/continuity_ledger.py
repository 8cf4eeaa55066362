"""The continuity ledger of each table: which part of its source's log it has, what brought the rest, and who decided.

Comes in: what a log entry says of tables, in the transaction that applies it; commands, in the transaction that carries
them out; and verdicts of verifications, in that of a lake's report. Goes out: numbered entries of a table, each with a
hash over itself and the hash before it. Nothing is changed or removed, so a gap stays visible after the table was read
again. `LedgerHead` has how many entries there are and the last hash, so that entries that are missing at the end are
seen too. A head that somebody has noted elsewhere shows whether all that came before it is still the same (`check`).

A kill leaves an entry with what it tells of, or neither. A database that was lost gets what the log tells again, at the
log's times; of commands it knows nothing, and HISTORY_LOST says where. Whoever appends has locked the tables' source.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from menura.bounds import clean_int64, clean_text
from menura.instants import now_us
from menura.lake_report import LakeVerdict
from menura.landing import LandedCut, LandedEvent
from menura.naming import TableName
from sqlalchemy import Connection, insert, select

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import insert_into, position_text
from controlplane_api.key_ranges import ranges_text
from controlplane_api.models import POSITION_OF_SYNC, AnyRow, LedgerEntry, LedgerHead, Source, SourceTable, Sync, Tenant
from controlplane_api.states import Desired, LedgerKind
from controlplane_api.syncs import by_name, lock_source

#: of a position, as the ledger keeps it
MAX_POSITION_CHARS = 4_096
MAX_DETAIL_CHARS = 2_000


#: of events, those that an entry is made of; and any that says that rows changed unlogged
_OF_EVENTS = frozenset({"DUMP_STARTED", "DUMPED", "REPAIR_STARTED", "REPAIRED", "CREATED", "RENAMED", "DROPPED"})


@dataclass(frozen=True, slots=True)
class Entry:
    kind: LedgerKind
    #: of the event; 0: of none
    gsn: int = 0
    from_position: str = ""
    to_position: str = ""
    #: the UUID of the dump, or of the verification
    dump: str = ""
    #: the reason; of a COMMAND what it was
    detail: str = ""
    #: who has ordered it; empty: nobody, it follows the log
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """Of a table's ledger. `broken_at`: the first entry that is not what was written; None: all are."""

    entries: int
    head: str
    broken_at: int | None
    #: the entry that has the head that was asked for; None: no entry has it, or none was asked for
    has_head_at: int | None = None


def of_cut(cut: LandedCut) -> Iterator[tuple[TableName, Entry]]:
    """What a cut says of its tables, in the order in which it happened."""
    for start in cut.started:
        detail = start.earlier_rows_missing
        yield (start.database, start.table), Entry(LedgerKind.STARTED, to_position=start.position.text, detail=detail)
    for event in cut.events:
        entry = _of_event(event)
        if entry is not None:
            yield (event.database, event.table), entry
    for stop in cut.stopped:
        detail = f"{stop.code}: {stop.message}"
        yield (stop.database, stop.table), Entry(LedgerKind.STOPPED, to_position=stop.position.text, detail=detail)


def record_command(
    connection: Connection, source_id: int, ordered: str, actor: str, tables: Sequence[TableName] | None = None
) -> None:
    """A command that has changed these tables, and where their syncs are after it; None: all that are synced.

    The source's row gets locked.
    """
    if tables is not None and not tables:
        return
    lock_source(connection, source_id)
    synced = select(SourceTable.id, SourceTable.database, SourceTable.name, POSITION_OF_SYNC).join(
        Sync, Sync.table_id == SourceTable.id
    )
    rows = by_name(
        connection, synced.where(SourceTable.source_id == source_id), tables, (Sync.desired == Desired.SYNCING,)
    )
    told = [
        (row.id, Entry(LedgerKind.COMMAND, to_position=position_text(row.position), detail=ordered, actor=actor))
        for row in rows.values()
    ]
    append(connection, now_us(), told)


def record_verdicts(connection: Connection, lake: str, verdicts: Sequence[LakeVerdict], at_us: int) -> None:
    """What verifications have found in a lake, of tables that this database knows. Sources' rows get locked."""
    of_sources: dict[tuple[str, str], list[LakeVerdict]] = {}
    for verdict in verdicts:
        of_sources.setdefault((verdict.tenant, verdict.source), []).append(verdict)
    for (tenant, source), found in sorted(of_sources.items()):
        of_name = select(Source.id).join(Tenant, Tenant.id == Source.tenant_id)
        source_id = connection.execute(of_name.where(Tenant.name == tenant, Source.name == source)).scalar()
        if source_id is None:
            continue
        lock_source(connection, source_id)
        tables = select(SourceTable.id, SourceTable.database, SourceTable.name).where(
            SourceTable.source_id == source_id
        )
        rows = by_name(connection, tables, [(each.database, each.table) for each in found])
        known = [(rows[each.database, each.table].id, each) for each in found if (each.database, each.table) in rows]
        append(connection, at_us, [(table_id, _of_verdict(lake, verdict)) for table_id, verdict in known])


def _of_verdict(lake: str, verdict: LakeVerdict) -> Entry:
    found = f"{verdict.verdict} in lake {lake}, {verdict.source_rows} rows"
    why = f"{found}: {verdict.reason}" if verdict.reason else found
    return Entry(LedgerKind.VERIFIED, to_position=verdict.position, dump=verdict.verification, detail=why)


def append(connection: Connection, at_us: int, entries: Iterable[tuple[int, Entry]]) -> None:
    """Each with its table's id; those of a table in order. Their sources are locked."""
    told = list(entries)
    if not told:
        return
    heads = _heads(connection, sorted({table_id for table_id, _ in told}))
    rows = []
    for table_id, entry in told:
        count, previous = heads[table_id]
        row = {"number": count + 1, "at_us": clean_int64(at_us), **asdict(_bounded(entry))}
        heads[table_id] = (count + 1, _hash(previous, row))
        rows.append({"table_id": table_id, **row, "hash": heads[table_id][1]})
    connection.execute(insert(LedgerEntry), rows)
    new = insert_into(connection, LedgerHead)
    replaced = {"entries": new.excluded.entries, "hash": new.excluded.hash}
    connection.execute(
        new.on_conflict_do_update(index_elements=[LedgerHead.table_id], set_=replaced),
        [{"table_id": table_id, "entries": count, "hash": head} for table_id, (count, head) in heads.items()],
    )


def newest(connection: Connection, table_id: int, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, of those before this number where one is given."""
    statement = select(LedgerEntry).where(LedgerEntry.table_id == table_id)
    if before is not None:
        statement = statement.where(LedgerEntry.number < before)
    return connection.execute(statement.order_by(LedgerEntry.number.desc()).limit(limit)).all()


def check(connection: Connection, table_id: int, noted_head: str = "") -> Checked:
    """Whether the entries are those that were written, none left out; and which one had `noted_head`."""
    known = connection.execute(select(LedgerHead).where(LedgerHead.table_id == table_id)).first()
    head, number, has_head_at = _beginnings(connection, [table_id])[table_id], 0, None
    while page := _after(connection, table_id, number):
        for row in page:
            told = {name: value for name, value in row._mapping.items() if name not in ("table_id", "hash")}
            if row.number != number + 1 or _hash(head, told) != row.hash:
                return Checked(number, head, number + 1, has_head_at)
            number, head = row.number, row.hash
            has_head_at = number if head == noted_head else has_head_at
    expected = (0, head) if known is None else (known.entries, known.hash)
    return Checked(number, head, None if (number, head) == expected else number + 1, has_head_at)


def _after(connection: Connection, table_id: int, number: int) -> Sequence[AnyRow]:
    """The next entries."""
    of_table = select(LedgerEntry).where(LedgerEntry.table_id == table_id, LedgerEntry.number > number)
    return connection.execute(of_table.order_by(LedgerEntry.number).limit(LOOKUP_ROWS)).all()


def _of_event(event: LandedEvent) -> Entry | None:
    gsn, position, why = clean_int64(event.gsn), event.position, event.unlogged_changes
    if event.kind == "LOG_GAP":
        return Entry(LedgerKind.GAP, gsn, event.gap_from, event.gap_to or position, detail=why)
    if event.repaired is not None:
        why = f"{ranges_text(event.repaired.key, event.repaired.kinds, event.repaired.ranges)} read again"
    if event.kind in _OF_EVENTS:
        return Entry(LedgerKind(event.kind), gsn, to_position=position, dump=event.dump, detail=why)
    return Entry(LedgerKind.ROWS_UNLOGGED, gsn, to_position=position, detail=why) if why else None


def _bounded(entry: Entry) -> Entry:
    return replace(
        entry,
        from_position=clean_text(entry.from_position, MAX_POSITION_CHARS),
        to_position=clean_text(entry.to_position, MAX_POSITION_CHARS),
        dump=clean_text(entry.dump),
        detail=clean_text(entry.detail, MAX_DETAIL_CHARS),
        actor=clean_text(entry.actor),
    )


def _hash(previous: str, row: Mapping[str, object]) -> str:
    """SHA-256 over the hash before it and the entry's fields in the order of their names, as JSON."""
    said = [previous, *(row[name] for name in sorted(row))]
    return sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


def _heads(connection: Connection, tables: Sequence[int]) -> dict[int, tuple[int, str]]:
    """How many entries each table has, and the hash that its next one follows."""
    found: dict[int, tuple[int, str]] = {}
    for piece in _pieces(tables):
        rows = connection.execute(select(LedgerHead).where(LedgerHead.table_id.in_(piece)))
        found |= {row.table_id: (row.entries, row.hash) for row in rows}
    new = [table_id for table_id in tables if table_id not in found]
    return found | {table_id: (0, hash_) for table_id, hash_ in _beginnings(connection, new).items()}


def _beginnings(connection: Connection, tables: Sequence[int]) -> dict[int, str]:
    """What the first entry's hash follows: the table's name, so that no ledger passes for another table's."""
    found: dict[int, str] = {}
    for piece in _pieces(tables):
        names = select(SourceTable.id, Tenant.name, Source.name, SourceTable.database, SourceTable.name)
        of_tables = names.join(Source, Source.id == SourceTable.source_id).join(Tenant, Tenant.id == Source.tenant_id)
        for table_id, *name in connection.execute(of_tables.where(SourceTable.id.in_(piece))):
            found[table_id] = sha256(json.dumps(name).encode()).hexdigest()
    return found


def _pieces(tables: Sequence[int]) -> Iterator[Sequence[int]]:
    return (tables[begin : begin + LOOKUP_ROWS] for begin in range(0, len(tables), LOOKUP_ROWS))
