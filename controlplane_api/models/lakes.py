"""What sinks report of their lakes."""

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class Lake(Base):
    """A lake, as its sink reports it: see `menura.lake_report`."""

    __tablename__ = "lake"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str]
    #: that its sink follows, by `menura.landing.landing_name`
    landing: Mapped[str]
    #: of the last report that was applied; '' and 0 before the first
    run: Mapped[str] = mapped_column(default="")
    number: Mapped[int] = mapped_column(default=0)
    #: whether everything that the sink knows has come once
    complete: Mapped[bool] = mapped_column(default=False)
    #: of its cut log: all up to it is in the lake
    entry: Mapped[int] = mapped_column(default=0)
    #: the same, and no restart of the sink needs an entry up to it again
    durable_entry: Mapped[int] = mapped_column(default=0, server_default="0")
    waiting_since_us: Mapped[int] = mapped_column(default=0)
    #: what ended the sink: {code, message}
    problem: Mapped[dict[str, Any] | None]
    #: of the last report, by this machine's clock; 0 before the first
    received_at_us: Mapped[int] = mapped_column(default=0)


class LakeSource(Base):
    """How far a source is in a lake; see `menura.lake_report.LakeSource`."""

    __tablename__ = "lake_source"
    __table_args__ = (Index(None, "tenant", "source"),)

    lake_id: Mapped[int] = mapped_column(Id, ForeignKey("lake.id"), primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    entry: Mapped[int]
    cut: Mapped[int]
    committed_at_us: Mapped[int]
    last_commit_timestamp_us: Mapped[int]


class LakeStop(Base):
    """A table that a sink has stopped; see `menura.lake_report.LakeStop`."""

    __tablename__ = "lake_stop"
    __table_args__ = (Index(None, "tenant", "source", "database", "name"),)

    lake_id: Mapped[int] = mapped_column(Id, ForeignKey("lake.id"), primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    entry: Mapped[int]
    cut: Mapped[int]
    code: Mapped[str]
    message: Mapped[str]
    terminal: Mapped[bool]
    at_us: Mapped[int]
    last_commit_timestamp_us: Mapped[int]
    #: the table goes on with a dump
    reread: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: with `reread`: the dump has to begin above this number; 0: not known yet
    gsn: Mapped[int] = mapped_column(default=0, server_default="0")
    #: the dump is noted in the table's sync, or was there already
    asked: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: somebody wants it to be tried again now
    retry: Mapped[bool] = mapped_column(default=False)
    #: from before the sink began to tell everything anew
    stale: Mapped[bool] = mapped_column(default=False)


class LakePolicy(Base):
    """What becomes of schema changes of a lake's table; see `menura.lake_report.LakePolicy`."""

    __tablename__ = "lake_policy"
    __table_args__ = (Index(None, "tenant", "source", "database", "name"),)

    lake_id: Mapped[int] = mapped_column(Id, ForeignKey("lake.id"), primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    said: Mapped[str]


class Verdict(Base):
    """What a lake's sink has found of a table by a verification; see `menura.lake_report.LakeVerdict`, `verdicts`.

    It names its table, as `lake_stop` does. The higher its id, the later it was told.
    """

    __tablename__ = "verdict"
    __table_args__ = (
        UniqueConstraint("lake_id", "tenant", "source", "database", "name", "verification"),
        Index(None, "tenant", "source", "database", "name"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    lake_id: Mapped[int] = mapped_column(ForeignKey("lake.id"))
    tenant: Mapped[str]
    source: Mapped[str]
    database: Mapped[str]
    name: Mapped[str]
    verification: Mapped[str]
    verdict: Mapped[str]
    reason: Mapped[str]
    position: Mapped[str]
    cut: Mapped[int]
    source_rows: Mapped[int]
    lake_rows: Mapped[int]
    leaves_equal: Mapped[int]
    leaves_differ: Mapped[int]
    leaves_unknown: Mapped[int]
    #: of `menura.lake_report.LakeLeaf`
    leaves: Mapped[list[Any]]
    #: ranges outside of which all was equal, as `menura.landed_digest.LandedFocus`; none: they are not known
    unproven: Mapped[dict[str, Any] | None]
    since_gsn: Mapped[int] = mapped_column(default=0, server_default="0")
    #: when the source's last rows were read, or else when it was found; never after it was told here
    proven_at_us: Mapped[int]
    at_us: Mapped[int]
    received_at_us: Mapped[int]
