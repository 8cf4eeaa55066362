"""Sources and their tables, as they are configured and as cartographies show them."""

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class Source(Base):
    __tablename__ = "source"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), Index(None, "agent_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    #: whose it is: assigned to it, or the last that announced it without a certificate; none while only the cut log
    #: knows the source
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agent.id"))
    name: Mapped[str]
    flavor: Mapped[str] = mapped_column(default="")
    server_version: Mapped[str] = mapped_column(default="")
    server_identity: Mapped[str] = mapped_column("server_uuid", default="")
    address: Mapped[str] = mapped_column(default="")
    policy_sha256: Mapped[str] = mapped_column(default="")
    #: of the desired state; grows with each change of the set of tables
    generation: Mapped[int] = mapped_column(default=0)
    #: of the desired dumps; grows with each change of what is asked of them
    dump_generation: Mapped[int] = mapped_column(default=0)
    #: of which the agent has said last what it does about each table; none: not known
    told_generation: Mapped[int | None]
    problem: Mapped[dict[str, Any] | None]
    #: problems that do not keep its log from being read
    warnings: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    #: `gateway.registry.OtherServerSeen`: what is there in place of the server that was read, until it is accepted
    other_server: Mapped[dict[str, Any] | None]
    #: identity of the one that was accepted last
    accepted_server: Mapped[str] = mapped_column(default="")
    cartography_at_us: Mapped[int | None]
    #: the agent's, in hexadecimal, of all tables as they are recorded; empty: none
    cartography_digest: Mapped[str] = mapped_column(default="", server_default="")
    #: the highest of a table when a cartography ended last: those of later ones no ended cartography has had
    ended_table_id: Mapped[int] = mapped_column(default=0, server_default="0")


class SourceConfiguration(Base):
    """What is desired of a source that the control plane configures, and what its agent does about it."""

    __tablename__ = "source_configuration"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    #: grows with each change
    generation: Mapped[int]
    #: of the document
    sha256: Mapped[str]
    #: JSON, as it travels: see `configuration_document`
    document: Mapped[str]
    changed_at_us: Mapped[int]
    #: of the one that runs, as the agent said last; 0 and empty: none does
    effective_generation: Mapped[int] = mapped_column(default=0)
    effective_sha256: Mapped[str] = mapped_column(default="")
    #: why the desired one does not run
    problem: Mapped[dict[str, Any] | None]
    told_at_us: Mapped[int | None]


class WantedTable(Base):
    """A table that shall be synced as soon as its source's cartography has it; the row goes when its sync begins."""

    __tablename__ = "wanted_table"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    #: `states.StartKind`
    start: Mapped[str]
    #: fields of `dump_lives.DumpOptions`
    options: Mapped[dict[str, Any]]
    #: why its sync was not begun when the cartography had it
    problem: Mapped[dict[str, Any] | None]


class SourceTable(Base):
    """One table of a source's cartography."""

    __tablename__ = "source_table"
    __table_args__ = (UniqueConstraint("source_id", "database", "name"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    database: Mapped[str]
    name: Mapped[str]
    engine: Mapped[str] = mapped_column(default="")
    table_collation: Mapped[str] = mapped_column(default="")
    estimated_rows: Mapped[int | None]
    size_bytes: Mapped[int | None]
    columns: Mapped[list[Any]]
    keys: Mapped[list[Any]]
    #: `gateway.registry.ForeignKeySeen`
    foreign_keys: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    #: that there are beside these
    more_foreign_keys: Mapped[int] = mapped_column(default=0, server_default="0")
    denied: Mapped[bool] = mapped_column(default=False)
    #: no longer in the last cartography
    gone: Mapped[bool] = mapped_column(default=False)
    #: of what a cartography says about the table, so that only what changed is written
    digest: Mapped[str] = mapped_column(default="")
    #: how many versions of `TableDefinition` there have been
    definitions: Mapped[int] = mapped_column(default=0, server_default="0")


class TableDefinition(Base):
    """What a table's definition became: see `registry.definitions`."""

    __tablename__ = "table_definition"
    __table_args__ = (UniqueConstraint("table_id", "number"), Index(None, "source_id", "id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    table_id: Mapped[int] = mapped_column(ForeignKey("source_table.id"))
    #: of the table's, from 1
    number: Mapped[int]
    #: `registry.definitions.Teller`
    teller: Mapped[str]
    #: of the change, or when it was seen
    at_us: Mapped[int | None]
    gsn: Mapped[int | None]
    position: Mapped[str]
    digest: Mapped[str]
    columns: Mapped[list[Any]]
    keys: Mapped[list[Any]]
    #: what it takes here
    bytes: Mapped[int]


class SourcePosition(Base):
    """A place in a source's log, stored once for all tables that are there; see `positions`."""

    __tablename__ = "source_position"
    __table_args__ = (UniqueConstraint("source_id", "digest"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("source.id"))
    #: of the position
    digest: Mapped[str]
    position: Mapped[dict[str, Any]]
