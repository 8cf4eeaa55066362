"""What agents run, the packages that they may be given, and the rollouts that give them."""

from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class AgentVersion(Base):
    """What an agent has said last of its software, as `gateway.registry.VersionSeen`. No row: it has said nothing."""

    __tablename__ = "agent_version"

    agent_id: Mapped[int] = mapped_column(Id, ForeignKey("agent.id"), primary_key=True, autoincrement=False)
    generation: Mapped[int]
    version: Mapped[str]
    format: Mapped[str]
    machine: Mapped[str]
    state: Mapped[str]
    downloaded_bytes: Mapped[int]
    problem: Mapped[dict[str, Any] | None]
    told_at_us: Mapped[int]
    #: of the last order for it
    ordered: Mapped[int] = mapped_column(default=0, server_default="0")


class AgentRelease(Base):
    """A version of the agent that a tenant has uploaded: SHA256SUMS and its signature. Files are `AgentPackage`."""

    __tablename__ = "agent_release"
    __table_args__ = (UniqueConstraint("tenant_id", "version"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    version: Mapped[str]
    sums: Mapped[bytes] = mapped_column(LargeBinary)
    signature: Mapped[bytes] = mapped_column(LargeBinary)
    #: of its files in all, as they were announced
    size_bytes: Mapped[int]
    #: all of its files are here, and have the sums that were announced
    complete: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_at_us: Mapped[int]
    #: when a piece of it came last
    changed_at_us: Mapped[int]


class AgentPackage(Base):
    """A file of a release."""

    __tablename__ = "agent_package"
    __table_args__ = (UniqueConstraint("release_id", "name"), Index(None, "sha256"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    release_id: Mapped[int] = mapped_column(ForeignKey("agent_release.id"))
    name: Mapped[str]
    #: "deb", "rpm" or "tar"
    format: Mapped[str]
    machine: Mapped[str]
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    #: that have come, without a gap
    received_bytes: Mapped[int] = mapped_column(default=0, server_default="0")


class AgentPackagePiece(Base):
    """Bytes of a file, in its order, of the size in which they travel; only the last may have fewer."""

    __tablename__ = "agent_package_piece"

    package_id: Mapped[int] = mapped_column(Id, ForeignKey("agent_package.id"), primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Rollout(Base):
    """An order that agents of a tenant shall run other versions, group by group; see `rollouts`."""

    __tablename__ = "rollout"
    __table_args__ = (Index(None, "tenant_id", "state"), Index(None, "state", "looked_at_us"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    #: empty: each agent's own, from before `back_of`
    version: Mapped[str]
    #: the rollout that it undoes
    back_of: Mapped[int | None]
    #: of `rollouts.RolloutState`
    state: Mapped[str]
    #: why it has halted, as a problem
    problem: Mapped[dict[str, Any] | None]
    #: names of its groups, in their order
    groups: Mapped[list[Any]]
    #: the one that has its turn
    group_number: Mapped[int] = mapped_column(default=0, server_default="0")
    wait_us: Mapped[int]
    at_once: Mapped[int]
    most_failures: Mapped[int]
    #: that an agent may take from its offer until it says that it runs the version
    return_us: Mapped[int]
    #: what runs already goes back when it halts
    roll_back: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: time that it was looked after: grows with each look, by no more than `rollouts.MOST_STEP_US`
    clock_us: Mapped[int] = mapped_column(default=0, server_default="0")
    #: the wall clock at the last look
    looked_at_us: Mapped[int]
    #: by `clock_us`: since then all agents of its group run the version, or it is cancelled; none: not yet
    whole_us: Mapped[int | None]
    created_by: Mapped[str]
    created_at_us: Mapped[int]
    ended_at_us: Mapped[int | None]


class RolloutAgent(Base):
    """An agent of a rollout: what it shall run, and how far that is."""

    __tablename__ = "rollout_agent"
    __table_args__ = (Index(None, "agent_id", "state"), Index(None, "rollout_id", "state", "group_number"))

    rollout_id: Mapped[int] = mapped_column(Id, ForeignKey("rollout.id"), primary_key=True, autoincrement=False)
    agent_id: Mapped[int] = mapped_column(Id, ForeignKey("agent.id"), primary_key=True, autoincrement=False)
    group_number: Mapped[int]
    version: Mapped[str]
    #: what ran when it was offered; empty: before
    former_version: Mapped[str] = mapped_column(default="", server_default="")
    #: of `rollouts.AgentState`
    state: Mapped[str]
    #: of its order; 0: none was given
    generation: Mapped[int] = mapped_column(default=0, server_default="0")
    #: by the rollout's `clock_us`, when its state began
    since_us: Mapped[int] = mapped_column(default=0, server_default="0")
    #: why it failed
    problem: Mapped[dict[str, Any] | None]
    #: nobody waits for it
    skipped: Mapped[bool] = mapped_column(default=False, server_default=false())
