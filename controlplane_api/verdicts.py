"""What verifications have found of tables, as the sinks of lakes report it, and what of it is kept.

Comes in: `menura.lake_report.LakeVerdict`s of a lake, within the transaction of its report. Goes out: rows of
`verdict`, and of each of their tables what is known now, `table_proof`. One that is there already stays as it is, so a
sink may tell everything anew. Of a table in a lake the last `KEPT` stay, and the newest one that is equal and the
newest that differs; of a lake the newest `MAX_OF_LAKE`. A table is in several lakes where several sinks report verdicts
of it: what is known of it is what is known of the lake of which the least is.

Three clocks have a part in it: the agent's, the sink's, and this machine's. No time is later than when the verdict was
told here, so a clock that is ahead makes no proof younger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from menura.lake_report import LakeVerdict
from sqlalchemy import Connection, delete, func, select, tuple_, update

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import insert_into
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, ProofOfTable, Verdict
from controlplane_api.states import Proof

KEPT = 10
MAX_OF_LAKE = 1_000_000
#: tables that are judged by one statement
JUDGED_ROWS = 1_000
#: tenant, source, database, table
FullName = tuple[str, str, str, str]
_NAMES = ("tenant", "source", "database", "name")
_TABLE = (Verdict.tenant, Verdict.source, Verdict.database, Verdict.name)
_SAID = (
    "tenant", "source", "database", "verification", "verdict", "reason", "position", "cut", "source_rows", "lake_rows",
    "leaves_equal", "leaves_differ", "leaves_unknown", "since_gsn",
)  # fmt: skip


#: of several lakes the worst counts
WORST_FIRST = (Proof.DIFFERS, Proof.NEVER, Proof.UNKNOWN, Proof.EQUAL)


def store(connection: Connection, lake_id: int, verdicts: Sequence[LakeVerdict], at_us: int) -> list[LakeVerdict]:
    """Those that are new, in the order in which they came."""
    new: list[LakeVerdict] = []
    for verdict in verdicts:
        row = {
            **{name: getattr(verdict, name) for name in _SAID}, "lake_id": lake_id, "name": verdict.table,
            "leaves": [asdict(leaf) for leaf in verdict.leaves],
            "unproven": asdict(verdict.unproven) if verdict.unproven is not None else None,
            "proven_at_us": min(verdict.read_at_us or verdict.at_us, at_us),
            "at_us": min(verdict.at_us, at_us), "received_at_us": at_us,
        }  # fmt: skip
        added = insert_into(connection, Verdict).values(row).on_conflict_do_nothing().returning(Verdict.id)
        if connection.execute(added).first() is not None:
            new.append(verdict)
    if new:
        tables = {(verdict.tenant, verdict.source, verdict.database, verdict.table) for verdict in new}
        judge(connection, tables | _forget(connection, lake_id, sorted(tables)))
    return new


def forget_lake(connection: Connection, lake_id: int) -> None:
    """All that was found in it."""
    of_lake = Verdict.lake_id == lake_id
    tables = [_full_name(row) for row in connection.execute(select(*_TABLE).where(of_lake).distinct())]
    connection.execute(delete(Verdict).where(of_lake))
    judge(connection, tables)


def _forget(connection: Connection, lake_id: int, tables: Sequence[FullName]) -> set[FullName]:
    """Gives other tables that have lost one."""
    gone: list[int] = []
    others: set[FullName] = set()
    of_lake = Verdict.lake_id == lake_id
    rows = connection.execute(
        select(Verdict.id, Verdict.verdict, *_TABLE).where(of_lake, among(_TABLE, tables))
        .order_by(*_TABLE, Verdict.id.desc())
    )  # fmt: skip
    counts: dict[tuple[str, ...], int] = {}
    seen: set[tuple[str, ...]] = set()
    for id_, verdict, *name in rows:
        table, kind = tuple(name), (*name, verdict)
        counts[table] = counts.get(table, 0) + 1
        is_newest = verdict in (Proof.EQUAL, Proof.DIFFERS) and kind not in seen
        seen.add(kind)
        if counts[table] > KEPT and not is_newest:
            gone.append(id_)
    total = connection.execute(select(func.count()).where(of_lake)).scalar_one()
    if total > MAX_OF_LAKE:
        oldest = select(Verdict.id, *_TABLE).where(of_lake).order_by(Verdict.id).limit(total - MAX_OF_LAKE)
        for row in connection.execute(oldest):
            gone.append(row.id)
            others.add(_full_name(row))
    for begin in range(0, len(gone), LOOKUP_ROWS):
        connection.execute(delete(Verdict).where(Verdict.id.in_(gone[begin : begin + LOOKUP_ROWS])))
    return others


def judge(connection: Connection, tables: Iterable[FullName]) -> None:
    """Bring `table_proof` of these to what their verdicts say; each row is held first, so that no report is missed."""
    names = sorted(set(tables))
    for begin in range(0, len(names), JUDGED_ROWS):
        some = names[begin : begin + JUDGED_ROWS]
        nothing = {"state": Proof.NEVER, "known_at_us": 0, "proven_at_us": 0, "newest_id": 0}
        held = [dict(zip(_NAMES, name, strict=True)) | nothing for name in some]
        statement = insert_into(connection, ProofOfTable)
        key = [getattr(ProofOfTable, name) for name in _NAMES]
        connection.execute(
            statement.on_conflict_do_update(index_elements=key, set_={"newest_id": ProofOfTable.newest_id}), held
        )
        known = _known(connection, some)
        connection.execute(delete(ProofOfTable).where(among(key, (name for name in some if name not in known))))
        for name, values in known.items():
            connection.execute(update(ProofOfTable).where(tuple_(*key) == name).values(values))


def _known(connection: Connection, names: Sequence[FullName]) -> dict[FullName, dict[str, Any]]:
    """Values of `table_proof`, of those that have a verdict."""
    columns = (Verdict.lake_id, Verdict.id, Verdict.verdict, Verdict.proven_at_us)
    rows = connection.execute(
        select(*_TABLE, *columns).where(among(_TABLE, names)).order_by(*_TABLE, Verdict.lake_id, Verdict.id.desc())
    )
    found = {}
    for name, of_table in groupby(rows, key=_full_name):
        lakes = [_of_lake(list(of_lake)) for _, of_lake in groupby(of_table, key=lambda row: row.lake_id)]
        worst = min(lakes, key=lambda lake: (WORST_FIRST.index(lake["state"]), lake["proven_at_us"]))
        found[name] = {**worst, "known_at_us": min(lake["known_at_us"] for lake in lakes)}
    return found


def _full_name(row: AnyRow) -> FullName:
    return row.tenant, row.source, row.database, row.name


def _of_lake(newest_first: Sequence[AnyRow]) -> dict[str, Any]:
    state, proof = judged(newest_first)
    known = next((row for row in newest_first if row.verdict in (Proof.EQUAL, Proof.DIFFERS)), None)
    return {
        "state": state,
        "known_at_us": known.proven_at_us if known else 0,
        "proven_at_us": proof.proven_at_us if proof else 0,
        "newest_id": newest_first[0].id,
        "proof_id": proof.id if proof else None,
    }


def judged(newest_first: Sequence[AnyRow]) -> tuple[Proof, AnyRow | None]:
    """Of a table's verdicts in one lake: what is known, and the proof: the newest one that is equal.

    What could not be told since takes no difference back.
    """
    known = next((row.verdict for row in newest_first if row.verdict in (Proof.EQUAL, Proof.DIFFERS)), "")
    proof = next((row for row in newest_first if row.verdict == Proof.EQUAL), None)
    if not newest_first:
        return Proof.NEVER, None
    if known == Proof.DIFFERS:
        return Proof.DIFFERS, proof
    return (Proof.EQUAL if newest_first[0].verdict == Proof.EQUAL else Proof.UNKNOWN), proof
