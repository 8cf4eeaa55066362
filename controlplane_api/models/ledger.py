"""The continuity ledger of each table."""

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class LedgerEntry(Base):
    """What has become of a table's continuity; never changed or removed: see `continuity_ledger`."""

    __tablename__ = "ledger_entry"

    table_id: Mapped[int] = mapped_column(Id, ForeignKey("source_table.id"), primary_key=True, autoincrement=False)
    #: from 1, without a gap
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_us: Mapped[int]
    #: `states.LedgerKind`
    kind: Mapped[str]
    gsn: Mapped[int]
    from_position: Mapped[str]
    to_position: Mapped[str]
    dump: Mapped[str]
    detail: Mapped[str]
    actor: Mapped[str]
    hash: Mapped[str]


class LedgerHead(Base):
    """Of a table's ledger: how many entries there are, and the last one's hash."""

    __tablename__ = "ledger_head"

    table_id: Mapped[int] = mapped_column(Id, ForeignKey("source_table.id"), primary_key=True, autoincrement=False)
    entries: Mapped[int]
    hash: Mapped[str]
