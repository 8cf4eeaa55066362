"""What follows the cut log, and which gateway owns what."""

from typing import Any

from sqlalchemy import ColumnElement, ForeignKey, and_, false
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id

#: others set clocks back by less than that every day
CLOCK_STEP_US = 1_000_000


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


class BlockedSource(Base):
    """A source of which entries of the cut log wait for a lock: see `registry.blocked`."""

    __tablename__ = "blocked_source"

    landing: Mapped[str] = mapped_column(primary_key=True)
    #: names without references, which would wait for the row that is locked
    tenant: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    #: the first that is not applied to it, and the last
    entry: Mapped[int]
    last_entry: Mapped[int]


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
    #: these six as in menura.v1.SourceStatus; none also where a gateway before them wrote the row
    decode_cpu_us: Mapped[int | None]
    restarts: Mapped[int | None]
    credit_bytes: Mapped[int | None]
    log_retention_seconds: Mapped[int | None]
    log_room_bytes: Mapped[int | None]
    log_is_unlimited: Mapped[bool | None]
    #: until the agent's next heartbeat
    heartbeat_ms: Mapped[int] = mapped_column(default=1000, server_default="1000")


class Gateway(Base):
    """A process of a gateway: until when it lives, as far as others know. Its sources are those of `Lease`."""

    __tablename__ = "gateway"

    name: Mapped[str] = mapped_column(primary_key=True)
    #: the process that has the name
    run: Mapped[str]
    expires_at_us: Mapped[int]
    #: from its last renewal until then; the default is that of gateways of earlier versions
    lease_us: Mapped[int] = mapped_column(default=15_000_000, server_default="15000000")


def gateway_lives(now: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a row of `Gateway` is of one that lives.

    After the clock went back, a lease that seems to have been renewed later than now is void: a dead gateway would keep
    its sources for as long as the clock went back. One that lives renews its own within a third of it.
    """
    renewed = Gateway.expires_at_us - Gateway.lease_us
    return and_(Gateway.expires_at_us > now, renewed < now + CLOCK_STEP_US)


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
