"""What verifications have found."""

from typing import Literal

from controlplane_api.api.views.base import View
from controlplane_api.states import Proof


class LeafView(View):
    """Rows that differ: of keys above `lower` up to and with `upper`; empty: without bound."""

    lower: str
    upper: str
    source_rows: int
    lake_rows: int
    #: of one row, as a JSON array of texts; or which part of the rows it is, where their keys have no order
    key: str
    #: of that row, which differ; empty: not known
    columns: str


class VerdictView(View):
    """What a verification has found of a table in a lake."""

    lake: str
    #: the dump that read the source
    verification: str
    verdict: Literal["equal", "differs", "void", "unknown"]
    #: why it is not equal; empty: it is
    reason: str
    #: of the source, behind the last row that was read, in the server's own words; empty: it did not end
    position: str
    #: of the lake, at whose end the last rows were compared
    cut: int
    source_rows: int
    lake_rows: int
    leaves_equal: int
    leaves_differ: int
    leaves_unknown: int
    #: the first ones of those that differ
    leaves: list[LeafView]
    #: when the source's last rows were read, or when it was found that none can be
    proven_at_us: int
    #: now minus that
    age_us: int


class TableProof(View):
    """What verifications have found of a table, in the lake of which the least is known."""

    state: Proof
    #: the newest; null: there is none
    verdict: VerdictView | None
    #: the newest that is equal; null: there is none
    proof: VerdictView | None


class SourceVerdictView(VerdictView):
    database: str
    table: str


class Verdicts(View):
    #: the newest first
    verdicts: list[VerdictView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class ProofView(TableProof):
    database: str
    table: str
    #: that runs now; empty: none does
    verification: str


class Proofs(View):
    proofs: list[ProofView]
    #: for the next page; null on the last
    next_cursor: str | None = None
