"""What verifications have found of tables, read from the database; see `verdicts`."""

from collections.abc import Sequence
from dataclasses import dataclass

from menura.naming import TableName
from sqlalchemy import Connection, select

from controlplane_api.api.views import TableProof, VerdictView
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, Lake, ProofOfTable, Verdict
from controlplane_api.states import Proof

_SHOWN = [getattr(Verdict, name) for name in VerdictView.model_fields if name not in ("lake", "age_us")]
SELECT = select(Verdict.id, Verdict.database, Verdict.name, Lake.name.label("lake"), *_SHOWN).join(
    Lake, Lake.id == Verdict.lake_id
)


@dataclass(frozen=True, slots=True)
class Known:
    """Of a table, in the lake of which the least is known."""

    state: Proof
    newest: AnyRow | None
    proof: AnyRow | None


NOTHING = Known(Proof.NEVER, None, None)


def of_tables(
    connection: Connection, tenant: str, source: str, names: Sequence[TableName] | None = None
) -> dict[TableName, Known]:
    """Of these tables, or of all; nothing for one without a verdict."""
    mine = [ProofOfTable.tenant == tenant, ProofOfTable.source == source]
    if names is not None:
        mine.append(among((ProofOfTable.database, ProofOfTable.name), names))
    proofs = connection.execute(select(ProofOfTable).where(*mine)).all()
    ids = [number for row in proofs for number in (row.newest_id, row.proof_id) if number is not None]
    shown: dict[int, AnyRow] = {}
    for begin in range(0, len(ids), LOOKUP_ROWS):
        some = SELECT.where(Verdict.id.in_(ids[begin : begin + LOOKUP_ROWS]))
        shown |= {row.id: row for row in connection.execute(some)}
    return {
        (row.database, row.name): Known(Proof(row.state), shown.get(row.newest_id), shown.get(row.proof_id))
        for row in proofs
    }


def proof_view(known: Known, now: int) -> TableProof:
    return TableProof(
        state=known.state,
        verdict=None if known.newest is None else verdict_view(known.newest, now),
        proof=None if known.proof is None else verdict_view(known.proof, now),
    )


def verdict_view(row: AnyRow, now: int) -> VerdictView:
    facts = {name: getattr(row, name) for name in VerdictView.model_fields if name != "age_us"}
    return VerdictView(**facts, age_us=max(0, now - row.proven_at_us))
