"""What verifications have found of tables, read from the database.

A table is in several lakes where several sinks report verdicts of it: what is known of it is what is known of the lake
of which the least is.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from menura.naming import TableName
from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from controlplane_api.api.views import TableProof, VerdictView
from controlplane_api.models import AnyRow, Lake, Verdict
from controlplane_api.states import Proof
from controlplane_api.verdicts import WORST_FIRST, judged

_SHOWN = [getattr(Verdict, name) for name in VerdictView.model_fields if name not in ("lake", "age_us")]
SELECT = select(Verdict.id, Verdict.database, Verdict.name, Lake.name.label("lake"), *_SHOWN).join(
    Lake, Lake.id == Verdict.lake_id
)


@dataclass(frozen=True, slots=True)
class Known:
    """Of a table, in one lake."""

    state: Proof
    newest: AnyRow | None
    proof: AnyRow | None


NOTHING = Known(Proof.NEVER, None, None)


def of_tables(
    connection: Connection, tenant: str, source: str, names: Sequence[TableName] | None = None
) -> dict[TableName, Known]:
    """Of these tables, or of all; nothing for one without a verdict."""
    mine = [Verdict.tenant == tenant, Verdict.source == source]
    if names is not None:
        mine.append(tuple_(Verdict.database, Verdict.name).in_(names))
    found: defaultdict[TableName, list[Known]] = defaultdict(list)
    rows = connection.execute(_newest(mine).order_by(Verdict.database, Verdict.name, Lake.name, Verdict.id.desc()))
    for (database, name, _), of_lake in groupby(rows, key=lambda row: (row.database, row.name, row.lake)):
        newest_first = list(of_lake)
        state, proof = judged(newest_first)
        found[database, name].append(Known(state, newest_first[0], proof))
    return {name: min(known, key=_worst) for name, known in found.items()}


def _newest(mine: Sequence[ColumnElement[bool]]) -> Select[tuple[int, ...]]:
    """Of each table in each lake the newest verdict of each kind."""
    kinds = (Verdict.lake_id, Verdict.database, Verdict.name, Verdict.verdict)
    return SELECT.where(Verdict.id.in_(select(func.max(Verdict.id)).where(*mine).group_by(*kinds)))


def _worst(known: Known) -> tuple[int, int]:
    """The oldest proof of equal ones."""
    return WORST_FIRST.index(known.state), 0 if known.proof is None else known.proof.proven_at_us


def proof_view(known: Known, now: int) -> TableProof:
    return TableProof(
        state=known.state,
        verdict=None if known.newest is None else verdict_view(known.newest, now),
        proof=None if known.proof is None else verdict_view(known.proof, now),
    )


def verdict_view(row: AnyRow, now: int) -> VerdictView:
    facts = {name: getattr(row, name) for name in VerdictView.model_fields if name != "age_us"}
    return VerdictView(**facts, age_us=max(0, now - row.proven_at_us))
