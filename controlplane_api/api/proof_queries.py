"""What the API shows of verifications: of each table what is known, and of what, read from the database."""

from collections.abc import Sequence

from menura.instants import now_us
from menura.key_values import INTEGER, Key, literal
from menura.naming import TableName
from sqlalchemy import Connection, and_, func, or_, select

from controlplane_api import verification_states
from controlplane_api.api import coverage_queries, queries
from controlplane_api.api.event_stream import Event, Following
from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.verdict_queries import NOTHING, SELECT, Known, of_tables, proof_view, verdict_view
from controlplane_api.api.views import Proofs, ProofView, RepairRangeView, RepairView, SourceVerdictView, Verdicts
from controlplane_api.dump_lives import VERIFICATION
from controlplane_api.models import AnyRow, Dump, SourceTable, Sync, Verdict
from controlplane_api.repairs import Repair
from controlplane_api.states import Coverage, DumpEnd, Proof

EVENTS_AT_ONCE = 200


def proofs(
    connection: Connection,
    tenant: str,
    source: str,
    *,
    only: TableName | None = None,
    text: str = "",
    which: Sequence[Coverage] = (),
    cursor: str = "",
    limit: int = 1,
) -> Proofs:
    """One page of the tables that are synced, or ever were, in order of name; of `which` those whose sync is asked for.

    Raises `SourceUnknown`.
    """
    source_id = queries.source_row(connection, tenant, source).id
    now = now_us()
    since_us = now - coverage_queries.within_seconds(connection, source_id) * 1_000_000
    coverage = verification_states.coverage(since_us)
    statement = (
        verification_states.tables(
            connection, source_id, SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.estimated_rows,
            Sync.earlier_rows_missing, verification_states.WHY.label("why"), verification_states.PROBLEM,
            coverage.label("coverage"),
        )
        .where(SourceTable.source_id == source_id)
        .order_by(SourceTable.database, SourceTable.name)
        .limit(limit + 1)
    )  # fmt: skip
    if text:
        statement = statement.where(queries.has_in_name(text))
    if which:
        statement = statement.where(verification_states.IS_ASKED, coverage.in_(which))
    after = read_cursor(cursor, str, str)
    if after is not None:
        database, name = after
        statement = statement.where(
            or_(SourceTable.database > database, and_(SourceTable.database == database, SourceTable.name > name))
        )
    if only is not None:
        statement = statement.where(SourceTable.database == only[0], SourceTable.name == only[1])
    rows, following = page_of(connection.execute(statement).all(), limit, lambda row: (row.database, row.name))
    known = of_tables(connection, tenant, source, [(row.database, row.name) for row in rows])
    running = _running(connection, source_id)
    shown = [
        _proof_view(row, known.get((row.database, row.name), NOTHING), running.get(row.id, ""), now) for row in rows
    ]
    return Proofs(proofs=shown, next_cursor=following)


def proof(connection: Connection, tenant: str, source: str, table: TableName) -> ProofView:
    """Raises `SourceUnknown`, `TableUnknown`."""
    found = proofs(connection, tenant, source, only=table).proofs
    if found:
        return found[0]
    source_id = queries.source_row(connection, tenant, source).id
    queries.table_id(connection, source_id, *table)
    return ProofView(
        database=table[0],
        table=table[1],
        coverage=Coverage.UNPROVABLE,
        unprovable="its sync was never asked for",
        estimated_rows=None,
        state=Proof.NEVER,
        verdict=None,
        proof=None,
        verification="",
    )


def verdicts(
    connection: Connection, tenant: str, source: str, table: TableName, *, cursor: str = "", limit: int
) -> Verdicts:
    """One page of a table's that are kept, of all lakes. Raises `SourceUnknown`, `TableUnknown`."""
    queries.table_id(connection, queries.source_row(connection, tenant, source).id, *table)
    of_table = (
        Verdict.tenant == tenant, Verdict.source == source, Verdict.database == table[0], Verdict.name == table[1]
    )  # fmt: skip
    statement = SELECT.where(*of_table).order_by(Verdict.id.desc())
    after = read_cursor(cursor, int)
    if after is not None:
        statement = statement.where(Verdict.id < after[0])
    rows, following = page_of(connection.execute(statement.limit(limit + 1)).all(), limit, lambda row: (row.id,))
    now = now_us()
    return Verdicts(verdicts=[verdict_view(row, now) for row in rows], next_cursor=following)


def _shown(kinds: Sequence[str], key: Key) -> list[int | str]:
    return [value if kind == INTEGER else literal(kind, value) for kind, value in zip(kinds, key, strict=False)]


def repair_view(table: TableName, uuid: str, operation: str, found: Repair) -> RepairView:
    ranges = [
        RepairRangeView(
            above=_shown(found.focus.kinds, each.above),
            up_to=_shown(found.focus.kinds, each.up_to),
            estimated_rows=each.rows,
        )
        for each in found.focus.ranges
    ]
    return RepairView(
        database=table[0],
        table=table[1],
        repair=uuid,
        operation=operation,
        verification=found.verdict.verification,
        lake=found.lake,
        key=list(found.key),
        ranges=ranges,
        estimated_rows=found.estimated_rows,
        leaves=found.verdict.leaves,
        leaves_differ=found.verdict.leaves_differ,
        verifies="ranges" if found.focus.rest_equal_at_us else "table",
    )


def newest(connection: Connection) -> int:
    """The number of the last verdict that was told."""
    return connection.execute(select(func.max(Verdict.id))).scalar() or 0


def after(connection: Connection, tenant: str, source: str, number: int) -> Following:
    """The next ones of the source; `EVENTS_AT_ONCE` at most."""
    of_source = (Verdict.tenant == tenant, Verdict.source == source, Verdict.id > number)
    now = now_us()
    rows = connection.execute(SELECT.where(*of_source).order_by(Verdict.id).limit(EVENTS_AT_ONCE))
    events = [
        Event(
            row.id,
            row.verdict,
            SourceVerdictView(**verdict_view(row, now).model_dump(), database=row.database, table=row.name),
        )
        for row in rows
    ]
    return Following(events, events[-1].number if events else number)


def _running(connection: Connection, source_id: int) -> dict[int, str]:
    rows = connection.execute(
        select(Dump.table_id, Dump.uuid).where(
            Dump.source_id == source_id, Dump.state == DumpEnd.RUNNING, Dump.cause == VERIFICATION
        )
    )
    return {row.table_id: row.uuid for row in rows}


def _proof_view(row: AnyRow, known: Known, verification: str, now: int) -> ProofView:
    facts = proof_view(known, now)
    return ProofView(
        database=row.database,
        table=row.name,
        coverage=row.coverage,
        unprovable=verification_states.why_not(row),
        estimated_rows=row.estimated_rows,
        state=facts.state,
        verdict=facts.verdict,
        proof=facts.proof,
        verification=verification,
    )
