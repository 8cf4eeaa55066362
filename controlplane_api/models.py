"""What the control plane remembers, as SQL tables; `migrations` brings a database to this shape.

Each table has one writer's rhythm, so that a commit never waits for a heartbeat: `source` and `sync`
change by commands, `committed_position` by the cut log, `source_health` by heartbeats, `lake`, `lake_source`,
`lake_stop` and `verdict` by the reports of sinks; these name sources and tables, and so hold before the database knows
them.
Whoever changes syncs or dumps of a source locks its `source` row first. Times are microseconds since the epoch, UTC.

Positions are stored as `menura.landing.LandedPosition`, problems as `gateway.registry.Problem`, columns and
keys of a cartography as `ColumnSeen` and `KeySeen`: JSON objects with those fields.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    Text,
    UniqueConstraint,
    false,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = BigInteger().with_variant(Integer, "sqlite")
Document = JSON(none_as_null=True)

#: of a SELECT; its columns are those that the statement names
AnyRow = Row[*tuple[Any, ...]]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {str: Text, int: BigInteger, dict[str, Any]: Document, list[Any]: Document}  # noqa: RUF012


class Tenant(Base):
    __tablename__ = "tenant"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at_us: Mapped[int]


class Agent(Base):
    __tablename__ = "agent"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    #: one run of its process
    session: Mapped[str]
    version: Mapped[str]
    hostname: Mapped[str]
    connected: Mapped[bool]
    connected_at_us: Mapped[int]
    seen_at_us: Mapped[int]
    resident_memory_bytes: Mapped[int | None]
    cpu_us: Mapped[int | None]
    #: of the public key that it has enrolled; none: it has none, or any that the operator's own CA certifies
    key_sha256: Mapped[str | None]
    enrolled_at_us: Mapped[int | None]
    #: since then it is refused, until it enrols again
    revoked_at_us: Mapped[int | None]
    #: what a gateway found last about who it is
    problem: Mapped[dict[str, Any] | None]
    #: digest of its last report about the sources that are configured for it: `gateway.registry.ConfigurationDigests`
    reported: Mapped[str] = mapped_column(default="", server_default="")


class EnrolmentToken(Base):
    """What enrols an agent once: see `identity.tokens`. A row stays for a while after its end."""

    __tablename__ = "enrolment_token"
    __table_args__ = (UniqueConstraint("token"), Index(None, "tenant_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    #: its public half
    token: Mapped[str]
    secret_sha256: Mapped[str]
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    #: the only one that it enrols; empty: any that is new
    agent: Mapped[str]
    created_at_us: Mapped[int]
    expires_at_us: Mapped[int]
    used_at_us: Mapped[int | None]
    #: the agent that it has enrolled
    used_by: Mapped[str] = mapped_column(default="")
    revoked_at_us: Mapped[int | None]


class CertificateAuthority(Base):
    """The CA whose gateways take agents: its certificate alone. One row, or none before the first gateway with a CA."""

    __tablename__ = "certificate_authority"

    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=False)
    certificate_pem: Mapped[str]
    at_us: Mapped[int]


class AuditEntry(Base):
    """What was done or refused about who is who. Rows are only added; the oldest ones go."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "tenant"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at_us: Mapped[int]
    #: as it was said; there may be none of this name
    tenant: Mapped[str]
    actor: Mapped[str]
    action: Mapped[str]
    #: the code of the error that refused it; empty: it was done
    refused: Mapped[str]
    found: Mapped[str]


class KeptAnswer(Base):
    """What the API has answered to a command with an Idempotency-Key; see `api.writing`."""

    __tablename__ = "kept_answer"
    __table_args__ = (Index(None, "tenant", "at_us"),)

    #: of the path; empty where it names none
    tenant: Mapped[str] = mapped_column(primary_key=True)
    #: as the audit log names it
    caller: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    at_us: Mapped[int]
    #: of method, path, query and body
    request_sha256: Mapped[str]
    #: as JSON; none: too large
    answer: Mapped[str | None]


class ApiToken(Base):
    """What a person or a script shows the API: see `identity.api_tokens`. A row stays for a while after its end."""

    __tablename__ = "api_token"
    __table_args__ = (UniqueConstraint("token"), Index(None, "tenant_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    #: its public half
    token: Mapped[str]
    secret_argon2: Mapped[str]
    name: Mapped[str]
    #: of `identity.callers.Role`
    role: Mapped[str]
    #: none: the whole fleet
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenant.id"))
    #: who has made it
    created_by: Mapped[str]
    created_at_us: Mapped[int]
    #: none: never, as that of `menura api run --admin-token-file`
    expires_at_us: Mapped[int | None]
    revoked_at_us: Mapped[int | None]


class WebSession(Base):
    """What a browser's cookie names, or a link that makes one: see `identity.sessions`."""

    __tablename__ = "web_session"
    __table_args__ = (UniqueConstraint("secret_sha256"), Index(None, "actor"), Index(None, "token_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    secret_sha256: Mapped[str]
    #: is good once, for a session
    link: Mapped[bool]
    actor: Mapped[str]
    #: [role, tenant or null] each; of a session without a token
    grants: Mapped[list[Any]]
    #: whose role it has, as long as that token is good
    token_id: Mapped[int | None] = mapped_column(ForeignKey("api_token.id", ondelete="CASCADE"))
    created_at_us: Mapped[int]
    expires_at_us: Mapped[int]


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


class Sync(Base):
    """A table's sync: what is asked for, and what the agent and the cut log say of it.

    `start` is set from the command until the cut log records that the table began: without it a table that
    is desired goes on with its source. `position` is a place up to which the lake has all of the table and
    after which it has nothing, so that a resume there neither loses nor repeats a row: it moves with each
    cut that holds rows of the table, when the table stops, and when it is stopped by a command.
    """

    __tablename__ = "sync"
    __table_args__ = (Index(None, "source_id", "state"), Index(None, "position_id"))

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
    rows: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    last_commit_timestamp_us: Mapped[int | None]
    landed_at_us: Mapped[int | None]
    #: with files of the table; 0: none; null: not known, of a database that is older than the column
    last_cut: Mapped[int | None] = mapped_column(default=0)


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
    #: of a verification, the rows that it reads, as `menura.landing.LandedFocus`; none: all
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
    rows_per_second: Mapped[int]
    bytes_per_second: Mapped[int]
    uncommitted_rows: Mapped[int]


class CommittedPosition(Base):
    """Where a source's last committed cut ended; follows the cut log."""

    __tablename__ = "committed_position"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    cut: Mapped[int]
    last_gsn: Mapped[int]
    last_transaction_id: Mapped[int]
    position: Mapped[dict[str, Any]]
    #: list of `menura.landing.LandedAhead`
    ahead: Mapped[list[Any]]
    rows: Mapped[int]
    bytes: Mapped[int]
    transactions: Mapped[int]
    last_commit_timestamp_us: Mapped[int | None]
    committed_at_us: Mapped[int]
    #: the cut log that the cut stands in, and its entry there; '' and 0 where an older version wrote it
    landing: Mapped[str] = mapped_column(default="")
    entry: Mapped[int] = mapped_column(default=0)


class Quarantine(Base):
    """A source of which the cut log has cuts that the database refuses: see `registry.quarantine`."""

    __tablename__ = "quarantine"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    landing: Mapped[str]
    #: the first that is held back, and where it stands
    entry: Mapped[int]
    cut: Mapped[int]
    last_entry: Mapped[int]
    last_cut: Mapped[int]
    problem: Mapped[dict[str, Any]]
    #: the columns of `committed_position` after the last one
    after: Mapped[dict[str, Any]]
    #: [[database, table], ...] of which they say something; none: more than are kept
    tables: Mapped[list[Any] | None]
    #: somebody wants them to be applied again
    retry: Mapped[bool] = mapped_column(default=False)


class SourceHealth(Base):
    """From the last heartbeat of the source's agent; rates are over the time since the one before."""

    __tablename__ = "source_health"

    source_id: Mapped[int] = mapped_column(Id, ForeignKey("source.id"), primary_key=True, autoincrement=False)
    at_us: Mapped[int]
    read_position: Mapped[str]
    source_position: Mapped[str]
    lag_us: Mapped[int | None]
    rows: Mapped[int]
    transactions: Mapped[int]
    read_bytes: Mapped[int]
    sent_bytes: Mapped[int]
    credit_wait_us: Mapped[int]
    rows_per_second: Mapped[float | None]
    read_bytes_per_second: Mapped[float | None]
    problem: Mapped[dict[str, Any] | None]


class Gateway(Base):
    """A process of a gateway: until when it lives, as far as others know. Its sources are those of `Lease`."""

    __tablename__ = "gateway"

    name: Mapped[str] = mapped_column(primary_key=True)
    #: the process that has the name
    run: Mapped[str]
    expires_at_us: Mapped[int]


class AgentPresence(Base):
    """At which gateway an agent is; stays when released, so that the epoch never falls."""

    __tablename__ = "agent_presence"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str] = mapped_column(primary_key=True)
    #: the process that has it, or had it last
    gateway: Mapped[str]
    run: Mapped[str]
    #: of the agent
    session: Mapped[str]
    #: grows whenever it is taken
    epoch: Mapped[int]
    released: Mapped[bool] = mapped_column(default=False)


class Lease(Base):
    """Which gateway owns a source; stays when released, so that the epoch never falls."""

    __tablename__ = "lease"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    #: the last owner and its process; empty where only the cut log knows the source
    gateway: Mapped[str]
    run: Mapped[str] = mapped_column(default="", server_default="")
    #: of the agent for which it owns the source
    session: Mapped[str] = mapped_column(default="", server_default="")
    released: Mapped[bool] = mapped_column(default=False, server_default=false())
    epoch: Mapped[int]
    #: the owner's first; 0: nobody was before it
    taken_epoch: Mapped[int] = mapped_column(default=0, server_default="0")
    #: the highest that the cut log shows
    logged_epoch: Mapped[int] = mapped_column(default=0, server_default="0")


class Landing(Base):
    """How far the database has followed a cut log."""

    __tablename__ = "landing"

    #: the address by which its first gateway knew it
    url: Mapped[str] = mapped_column(primary_key=True)
    #: of its landing.json; none: of a former version
    identity: Mapped[str | None]
    applied_entry: Mapped[int]


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
    #: when the source's last rows were read, or else when it was found; never after it was told here
    proven_at_us: Mapped[int]
    at_us: Mapped[int]
    received_at_us: Mapped[int]


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
