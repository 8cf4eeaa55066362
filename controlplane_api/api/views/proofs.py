"""What verifications have found."""

from typing import Literal

from controlplane_api.api.views.base import View
from controlplane_api.states import Coverage, Proof


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
    #: why it is not equal; of an equal one on which other reading that rests, empty: on none
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
    #: whether it counts as proven, within the period of the source's schedule or a week
    coverage: Coverage
    #: why it can't be verified now; empty: it can
    unprovable: str
    #: as the server estimates
    estimated_rows: int | None
    #: that runs now; empty: none does
    verification: str


class RepairRangeView(View):
    """Keys above `above` up to and with `up_to`, a value for each of the key's columns; empty: without bound. Integers
    are numbers, and other values texts: dates, times in UTC, decimals, hexadecimal digits of bytes, texts."""

    above: list[int | str]
    up_to: list[int | str]
    #: that the source had there when it was compared
    estimated_rows: int


class RepairView(View):
    """Which rows of a table are read again, or would be."""

    database: str
    table: str
    #: the dump that reads them
    repair: str
    #: names the command, as the Location does
    operation: str
    #: whose verdict says that they differ, and in which lake
    verification: str
    lake: str
    #: columns that the ranges are of, the first of the table's key
    key: list[str]
    ranges: list[RepairRangeView]
    estimated_rows: int
    #: what differed, as far as the verdict names it; all of the ranges is read
    leaves: list[LeafView]
    leaves_differ: int
    #: what is compared afterwards: these ranges, since all of the rest was equal, or the whole table
    verifies: Literal["ranges", "table"]


class Proofs(View):
    proofs: list[ProofView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class ScheduledVerifications(View):
    #: in which each table has its turn
    every_seconds: int
    #: globs
    database: str
    table: str
    #: of each verification; 0: the agent's own limit alone
    rows_per_second: int
    #: in which verifications are begun; empty: at any time
    window: str
    changed_at_us: int
    #: no verification is ordered before
    next_at_us: int


class VerificationScheduleView(View):
    source: str
    #: null: verifications are ordered by commands alone
    schedule: ScheduledVerifications | None


class CoverageView(View):
    """Of the tables of a source whose sync is asked for."""

    source: str
    #: proofs that are older count for none
    within_seconds: int
    tables: dict[Coverage, int]
    #: of these tables, as the server estimates
    rows: dict[Coverage, int]
    #: null: no table was ever proven
    oldest_proof_age_us: int | None
    #: when that was proven
    oldest_proof_at_us: int | None


class Coverages(View):
    sources: list[CoverageView]
