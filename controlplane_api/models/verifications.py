"""When tables are verified by themselves, and what verifications have found of each."""

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class VerificationSchedule(Base):
    """Which tables of a source are verified by themselves, and how often; see `verification_schedules`."""

    __tablename__ = "verification_schedule"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    #: every table once
    every_seconds: Mapped[int]
    #: globs
    database: Mapped[str]
    name: Mapped[str]
    #: of each verification; 0: only the agent's own limit
    rows_per_second: Mapped[int]
    #: as `menura.windows` reads it; empty: at any time
    window: Mapped[str]
    changed_at_us: Mapped[int]
    #: no verification is ordered before
    next_at_us: Mapped[int]


class ProofOfTable(Base):
    """What verifications have found of a table, in the lake of which the least is known; follows `verdict`.

    It names its table, as `verdict` does.
    """

    __tablename__ = "table_proof"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    #: `states.Proof`
    state: Mapped[str]
    #: of the newest verdict that is equal or differs; 0: there is none
    known_at_us: Mapped[int]
    #: of the newest that is equal; 0: there is none
    proven_at_us: Mapped[int]
    #: ids of the newest verdict, and of the newest that is equal
    newest_id: Mapped[int]
    proof_id: Mapped[int | None]
