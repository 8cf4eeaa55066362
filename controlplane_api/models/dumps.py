"""Dumps, their ranges, and what they are doing."""

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class Dump(Base):
    """A first copy of a table: what is asked for, its plan, how far it is.

    Commands and plans are written by the API and the gateway; `started_gsn`, the counts and the ranges follow the cut
    log, which has each chunk. `state` is running until the dump is over; what it does meanwhile is in `dump_status`.
    """

    __tablename__ = "dump"
    __table_args__ = (UniqueConstraint("source_id", "uuid"), Index(None, "source_id", "state"), Index(None, "table_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    uuid: Mapped[str]
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    table_id: Mapped[int] = mapped_column(ForeignKey("source_table.id"))
    state: Mapped[str]
    #: `changed_generation` of its sync when it failed: it can go on as long as the sync lives the same life
    sync_generation: Mapped[int] = mapped_column(default=0)
    created_at_us: Mapped[int]
    ended_at_us: Mapped[int | None]
    problem: Mapped[dict[str, Any] | None]
    #: `dump_lives.REREAD`, or empty where a user has asked for it
    cause: Mapped[str] = mapped_column(default="")
    #: a step of what takes a dump's place behind a gap of the log: `comparisons`
    compares: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: after `created_at_us` it begins no sooner
    delay_seconds: Mapped[int] = mapped_column(default=0)

    priority: Mapped[int] = mapped_column(default=0)
    paused: Mapped[bool] = mapped_column(default=False)
    #: run it although the server may not keep its log long enough
    forced: Mapped[bool] = mapped_column(default=False)
    #: 0: no limit of the user's
    workers: Mapped[int] = mapped_column(default=0)
    rows_per_second: Mapped[int] = mapped_column(default=0)
    bytes_per_second: Mapped[int] = mapped_column(default=0)

    planned_at_us: Mapped[int | None]
    #: columns of the key in whose order it is read; none: the whole table in one snapshot
    key: Mapped[list[Any]]
    #: of a verification, the rows that it reads, as `menura.landed_digest.LandedFocus`; none: all
    focus: Mapped[dict[str, Any] | None]
    #: of the key's first column, where it is a number
    least_key: Mapped[float | None]
    greatest_key: Mapped[float | None]
    estimated_rows: Mapped[int | None]
    estimated_bytes: Mapped[int | None]
    runway_seconds: Mapped[int | None]
    needed_seconds: Mapped[int | None]
    warning: Mapped[str] = mapped_column(default="")

    #: number of its DUMP_STARTED event; 0 before that is committed
    started_gsn: Mapped[int] = mapped_column(default=0)
    #: above every committed chunk
    next_chunk: Mapped[int] = mapped_column(default=1)
    #: of committed chunks, as the server sent them
    rows: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    chunks: Mapped[int] = mapped_column(default=0)


class DumpRange(Base):
    """One range of a dump's plan, and how far it is done."""

    __tablename__ = "dump_range"

    dump_id: Mapped[int] = mapped_column(Id, ForeignKey("dump.id"), primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    lower: Mapped[str]
    upper: Mapped[str]
    #: where its last committed chunk ended; `lower` before the first
    reached: Mapped[str]
    #: of its chunks up to there
    rows: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    chunks: Mapped[int] = mapped_column(default=0)
    #: these four before the log entry that moved it last; none before the first
    former: Mapped[dict[str, Any] | None]
    done: Mapped[bool] = mapped_column(default=False)


class DumpStatus(Base):
    """What a dump is doing, as the agent said last."""

    __tablename__ = "dump_status"

    dump_id: Mapped[int] = mapped_column(Id, ForeignKey("dump.id"), primary_key=True, autoincrement=False)
    at_us: Mapped[int]
    #: a name of menura.v1.DumpStatus.State
    state: Mapped[str]
    reason: Mapped[str]
    #: a name of menura.v1.DumpStatus.Held; empty: nothing, or an agent that does not tell it
    held: Mapped[str] = mapped_column(default="", server_default="")
    rows_per_second: Mapped[int]
    bytes_per_second: Mapped[int]
    uncommitted_rows: Mapped[int]
