"""What is asked for of tables, and what the agent and the cut log say of it."""

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, select
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id
from controlplane_api.models.sources import SourcePosition


class Sync(Base):
    """A table's sync: what is asked for, and what the agent and the cut log say of it.

    `start` is set from the command until the cut log records that the table began: without it a table that
    is desired goes on with its source. `position` is a place up to which the lake has all of the table and
    after which it has nothing, so that a resume there neither loses nor repeats a row: it moves with each
    cut that holds rows of the table, when the table stops, and when it is stopped by a command.
    """

    __tablename__ = "sync"
    __table_args__ = (
        Index(None, "source_id", "state"),
        Index(None, "position_id"),
        Index("ix_sync_source_id_verification", "source_id", "verification_ordered_at_us"),
    )

    table_id: Mapped[int] = mapped_column(Id, ForeignKey("source_table.id"), primary_key=True, autoincrement=False)
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    desired: Mapped[str]
    start: Mapped[str | None]
    #: the position, or the dump's UUID
    start_text: Mapped[str] = mapped_column(default="")
    #: of the source when the sync was last started, stopped or failed: reports of older ones are of an earlier life
    changed_generation: Mapped[int]
    #: the cut log records that an error stopped it: not asked of the agent until it is started again
    failed: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str]
    #: of `states.StoppedBy`; empty: it was not stopped, or before this was written
    stopped_by: Mapped[str] = mapped_column(default="", server_default="")
    problem: Mapped[dict[str, Any] | None]
    #: of `SourcePosition`
    position_id: Mapped[int | None]
    #: from where it shall go on when it is started again, as `offsets.altered` says it; none: from its position
    altered: Mapped[dict[str, Any] | None]
    earlier_rows_missing: Mapped[str] = mapped_column(default="")
    #: why rows from before may be stale, as `rereads.noted` says it; none: no row is
    unlogged: Mapped[dict[str, Any] | None]
    #: dumps an hour that a lake may ask for, by the agent's policy; 0: none
    lake_rereads_per_hour: Mapped[int] = mapped_column(default=0)
    #: the last event FOREIGN_KEYS of the log, as `LandedEvent`; none: it has none
    foreign_keys: Mapped[dict[str, Any] | None]
    ignored_columns: Mapped[list[Any]]
    #: as `gateway.registry.Withheld`; none: the agent has told nothing since the table's rows came anew
    withheld: Mapped[dict[str, Any] | None]
    rows: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    last_commit_timestamp_us: Mapped[int | None]
    landed_at_us: Mapped[int | None]
    #: with files of the table; 0: none; null: not known, of a database that is older than the column
    last_cut: Mapped[int | None] = mapped_column(default=0)
    #: when its last verification was ordered; 0: none was
    verification_ordered_at_us: Mapped[int] = mapped_column(default=0, server_default="0")


#: of a sync: its position, for a SELECT
POSITION_OF_SYNC = (
    select(SourcePosition.position)
    .where(SourcePosition.id == Sync.position_id)
    .correlate(Sync)
    .scalar_subquery()
    .label("position")
)


class SyncRule(Base):
    """Which tables of a source shall be synced as soon as they are there; see `rules`."""

    __tablename__ = "sync_rule"
    __table_args__ = (UniqueConstraint("source_id", "database", "name"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    uuid: Mapped[str]
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    #: globs
    database: Mapped[str]
    name: Mapped[str]
    start: Mapped[str]
    #: `dump_lives.DumpOptions`
    options: Mapped[dict[str, Any]]
    created_at_us: Mapped[int]


class Operation(Base):
    """A command about several tables; see `operations`."""

    __tablename__ = "operation"
    __table_args__ = (UniqueConstraint("source_id", "uuid"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    uuid: Mapped[str]
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    #: start, stop, retry, resync or dump
    kind: Mapped[str]
    at_us: Mapped[int]
    #: of the source, after it
    generation: Mapped[int]
    tables: Mapped[int]


class OperationTable(Base):
    """A table that an operation named, in the order of its answer."""

    __tablename__ = "operation_table"

    operation_id: Mapped[int] = mapped_column(Id, ForeignKey("operation.id"), primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    #: none: the cartography had no such table
    table_id: Mapped[int | None] = mapped_column(Id)
    database: Mapped[str]
    name: Mapped[str]
    changed: Mapped[bool]
    #: the code of the error; empty: it was not
    refused: Mapped[str]
    #: that it began; empty for none
    dump: Mapped[str]


#: of a table
KEPT_EVENTS = 100


class TableEvent(Base):
    """One of a table's last events; follows the cut log."""

    __tablename__ = "table_event"

    table_id: Mapped[int] = mapped_column(Id, ForeignKey("source_table.id"), primary_key=True, autoincrement=False)
    gsn: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    commit_timestamp_us: Mapped[int]
    position: Mapped[str]
    statement: Mapped[str]
    removes_rows: Mapped[bool]
    #: [database, table], of a renamed one
    new_name: Mapped[list[Any]]
    #: of DUMP_STARTED and DUMPED: its UUID
    dump: Mapped[str] = mapped_column(default="")
    #: why rows from before may be stale since then; empty: none is
    unlogged_changes: Mapped[str] = mapped_column(default="")
