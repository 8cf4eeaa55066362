"""What verifications have found of tables, as the sinks of lakes report it, and what of it is kept.

Comes in: `menura.lake_report.LakeVerdict`s of a lake, within the transaction of its report. Goes out: rows of
`verdict`. One that is there already stays as it is, so a sink may tell everything anew. Of a table in a lake the last
`KEPT` stay, and the newest one that is equal and the newest that differs; of a lake the newest `MAX_OF_LAKE`.

Three clocks have a part in it: the agent's, the sink's, and this machine's. No time is later than when the verdict was
told here, so a clock that is ahead makes no proof younger.
"""

from collections.abc import Sequence
from dataclasses import asdict

from menura.lake_report import LakeVerdict
from sqlalchemy import Connection, delete, func, select, tuple_

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import insert_into
from controlplane_api.models import AnyRow, Verdict
from controlplane_api.states import Proof

KEPT = 10
MAX_OF_LAKE = 1_000_000
_TABLE = (Verdict.tenant, Verdict.source, Verdict.database, Verdict.name)
_SAID = (
    "tenant", "source", "database", "verification", "verdict", "reason", "position", "cut", "source_rows", "lake_rows",
    "leaves_equal", "leaves_differ", "leaves_unknown",
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
            "proven_at_us": min(verdict.read_at_us or verdict.at_us, at_us),
            "at_us": min(verdict.at_us, at_us), "received_at_us": at_us,
        }  # fmt: skip
        added = insert_into(connection, Verdict).values(row).on_conflict_do_nothing().returning(Verdict.id)
        if connection.execute(added).first() is not None:
            new.append(verdict)
    if new:
        tables = {(verdict.tenant, verdict.source, verdict.database, verdict.table) for verdict in new}
        _forget(connection, lake_id, sorted(tables))
    return new


def _forget(connection: Connection, lake_id: int, tables: Sequence[tuple[str, str, str, str]]) -> None:
    gone: list[int] = []
    of_lake = Verdict.lake_id == lake_id
    rows = connection.execute(
        select(Verdict.id, Verdict.verdict, *_TABLE).where(of_lake, tuple_(*_TABLE).in_(tables))
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
        oldest = select(Verdict.id).where(of_lake).order_by(Verdict.id).limit(total - MAX_OF_LAKE)
        gone += connection.execute(oldest).scalars()
    for begin in range(0, len(gone), LOOKUP_ROWS):
        connection.execute(delete(Verdict).where(Verdict.id.in_(gone[begin : begin + LOOKUP_ROWS])))


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
