"""Tables as the API shows them: their rows in the database, with what their source and lakes say of them.

Comes in: rows of `table_select`, and the `Situation` of their source. Goes out: the fields of `TableView`. What is not
of the rows is read for all of them at once: no statement is one table's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from menura.naming import TableName
from sqlalchemy import Connection, Select, select

from controlplane_api import positions
from controlplane_api.api import dump_queries, lake_queries
from controlplane_api.api.source_queries import STATE, Situation, age
from controlplane_api.api.stages import MOVING, Standing
from controlplane_api.api.table_reason_words import words_of
from controlplane_api.api.table_reasons import SourceFacts, TableFacts, reason_of
from controlplane_api.api.verdict_queries import NOTHING, Known, of_tables, proof_view
from controlplane_api.api.views import DumpView, LakeTableView, ProblemView, TableProof, TableView
from controlplane_api.documents import position_text
from controlplane_api.models import AnyRow, CommittedPosition, SourceTable, Sync
from controlplane_api.states import LakeState, Stage, State
from controlplane_api.syncs import is_syncing

#: of a position in a list of tables; a table's own page has all of it
MAX_LISTED_POSITION_CHARS = 1_000


def table_select() -> Select[*tuple[Any, ...]]:
    return (
        select(
            SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.engine, SourceTable.estimated_rows,
            SourceTable.size_bytes, SourceTable.denied, SourceTable.gone, STATE.label("state"),
            Sync.state.label("own_state"), Sync.stopped_by, Sync.changed_generation, Sync.desired, Sync.start,
            Sync.failed, Sync.position_id, Sync.problem, Sync.earlier_rows_missing, Sync.unlogged,
            Sync.ignored_columns, Sync.rows, Sync.bytes, Sync.last_commit_timestamp_us, Sync.landed_at_us,
        )
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .order_by(SourceTable.database, SourceTable.name)
    )  # fmt: skip


def table_views(connection: Connection, held: Situation, rows: Sequence[AnyRow], now: int) -> list[TableView]:
    """Of rows of `table_select`."""
    return [TableView(**fields) for fields in fields_of(connection, held, rows, now)]


def fields_of(
    connection: Connection,
    held: Situation,
    rows: Sequence[AnyRow],
    now: int,
    most_chars: int = MAX_LISTED_POSITION_CHARS,
) -> Iterator[dict[str, Any]]:
    """Of each row those of `TableView`; a position that is longer than `most_chars` is cut, 0: none is."""
    dumps = dump_queries.running_of_tables(connection, [row.id for row in rows])
    in_lakes = _in_lakes(connection, held, rows, now)
    places = _places(connection, held.row.id, rows, most_chars)
    proofs = of_tables(connection, held.row.tenant, held.row.name, [(row.database, row.name) for row in rows])
    source = _source_facts(held)
    for row in rows:
        dump, lake = dumps.get(row.id), in_lakes.get(row.id)
        yield _table_fields(row, places, dump, held.standing, lake, now) | {
            **_reason(row, dump, held, source),
            "proof": _proof(row, proofs, now),
        }


def _reason(row: AnyRow, dump: DumpView | None, held: Situation, source: SourceFacts) -> dict[str, str]:
    facts = TableFacts(
        state=held.standing.of(State(row.state)),
        own=None if row.own_state is None else State(row.own_state),
        denied=row.denied,
        gone=row.gone,
        failed=bool(row.failed),
        code=(row.problem or {}).get("code", ""),
        stopped_by=row.stopped_by or "",
        start=row.start,
        changed_generation=row.changed_generation or 0,
        dump=None if dump is None else dump.state,
        held=None if dump is None else dump.held,
    )
    reason = reason_of(facts, source)
    words = words_of(reason, held.row.name, row.database, row.name, "" if dump is None else dump.dump)
    return {"reason": reason, "meaning": words.meaning, "remedy": words.remedy}


def _source_facts(held: Situation) -> SourceFacts:
    row = held.row
    is_configured = row.sha256 is not None
    return SourceFacts(
        state=held.standing.state,
        stage=held.standing.stage,
        code=(held.standing.problem or {}).get("code", ""),
        has_agent=row.agent is not None,
        is_revoked=row.revoked_at_us is not None,
        upgrades=bool(row.upgrades),
        configuration_refused=is_configured and not row.effective_sha256 and row.configuration_problem is not None,
        configuration_pending=is_configured and row.effective_sha256 != row.sha256,
        other_server=row.other_server is not None,
        has_cartography=row.cartography_at_us is not None,
        told_generation=row.told_generation,
    )


def _in_lakes(connection: Connection, held: Situation, rows: Sequence[AnyRow], now: int) -> dict[int, LakeTableView]:
    """Of tables with a sync, by id."""
    synced = {(row.database, row.name): row.id for row in rows if row.desired is not None}
    found = lake_queries.of_tables(connection, held.row.tenant, held.row.name, synced, held.lakes, now)
    return {synced[name]: view for name, view in found.items()}


def _proof(row: AnyRow, known: Mapping[TableName, Known], now: int) -> TableProof | None:
    return None if row.desired is None else proof_view(known.get((row.database, row.name), NOTHING), now)


def _table_fields(
    row: AnyRow, places: "_Places", dump: DumpView | None, held: Standing, lake: LakeTableView | None, now: int
) -> dict[str, Any]:
    stage, problem = _held_up(row, held, lake)
    return {
        "database": row.database,
        "table": row.name,
        "state": held.of(State(row.state)),
        "stage": stage,
        "desired": row.desired,
        "runs": is_syncing(row),
        "start": row.start,
        "position": places.of(row),
        "problem": problem,
        "lake": lake,
        "earlier_rows_missing": row.earlier_rows_missing or "",
        "unlogged": row.unlogged,
        "ignored_columns": row.ignored_columns or [],
        "rows": row.rows or 0,
        "bytes": row.bytes or 0,
        "freshness_us": age(row.last_commit_timestamp_us, now),
        "last_commit_timestamp_us": row.last_commit_timestamp_us,
        "landed_at_us": row.landed_at_us,
        "engine": row.engine,
        "estimated_rows": row.estimated_rows,
        "size_bytes": row.size_bytes,
        "denied": row.denied,
        "gone": row.gone,
        "dump": dump,
    }


def _held_up(
    row: AnyRow, held: Standing, lake: LakeTableView | None
) -> tuple[Stage | None, ProblemView | dict[str, Any] | None]:
    """Where a table is held up, and why."""
    if not is_syncing(row):
        return (Stage.SOURCE if row.failed else None), row.problem
    if held.state is State.FAILED:
        return held.stage, held.problem
    if row.state == State.FAILED and lake is not None and lake.state is LakeState.FAILED:
        return Stage.LAKE, lake.problem
    if row.state == State.CATCHING_UP and held.state is None and lake is not None and lake.state is LakeState.BEHIND:
        return Stage.LAKE, lake.problem
    if row.state in MOVING and held.state is not None:
        # What the agent says of the table itself is nearer to it.
        own = row.problem if held.stage is Stage.SOURCE and row.state == State.WAITING else None
        return held.stage, own or held.problem
    return (Stage.SOURCE if row.problem is not None else None), row.problem


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of a source's tables, in the server's own words."""

    committed: str
    ahead: dict[TableName, str]
    #: of `SourcePosition`, by id
    kept: dict[int, str]

    def of(self, row: AnyRow) -> str:
        """A table that flows is where its source is, unless it is ahead of it; any other is where it stopped."""
        if _is_where_it_stopped(row):
            return self.kept.get(row.position_id, "")
        return self.ahead.get((row.database, row.name), self.committed)


def _is_where_it_stopped(row: AnyRow) -> bool:
    return not is_syncing(row) or row.start is not None


def _places(connection: Connection, source_id: int, rows: Sequence[AnyRow], most_chars: int) -> _Places:
    """`most_chars`: of a position that many tables may have; 0: all."""

    def text(document: dict[str, Any] | None) -> str:
        words = position_text(document)
        return words if not most_chars or len(words) <= most_chars else f"{words[:most_chars]}..."

    committed = connection.execute(
        select(CommittedPosition.position, CommittedPosition.ahead).where(CommittedPosition.source_id == source_id)
    ).first()
    stopped = {row.position_id for row in rows if _is_where_it_stopped(row) and row.position_id is not None}
    kept = {id_: text(position) for id_, position in positions.documents(connection, stopped).items()}
    if committed is None:
        return _Places("", {}, kept)
    ahead = {
        (database, name): words
        for part in committed.ahead
        for words in (text(part["position"]),)
        for database, name in part["tables"]
    }
    return _Places(text(committed.position), ahead, kept)
