"""The gateway's view of the control plane's database, as a seam: `controlplane_api` implements it over SQLAlchemy.

Comes in: what agents report and which cuts were committed. Goes out: the desired state of sources, their
leases, and where each source's next cut begins. The cut log is the truth about positions; the database
follows it (`apply_entry`) and may be behind after a kill, never ahead. Every call is synchronous and
short: the gateway runs it in a worker thread.

A call ends in one of three ways. It is done. It fails for now: `RegistryUnavailable`, and what it should have written
is written by the next exchange. Or it is refused for what it says: `RegistryRefused`, and repeating it helps nobody.
What the cut log holds can't be refused, since it is committed: a cut that can't be applied is *poison*, and its source
alone is quarantined. Its later cuts are held back too, until somebody has them applied again (`held`, `apply_held`) or
moves the source past them. A source of which another transaction holds a row is held back too, and applied as soon as
that has ended (`blocked`, `apply_blocked`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol

from menura.horizon import Horizon
from menura.landed_digest import LandedFocus
from menura.landing import LandedAhead, LandedPosition, LogEntry
from menura.naming import TableName


class RegistryUnavailable(Exception):
    """The database could not be reached or refused; transient."""


class RegistryRefused(Exception):
    """The database takes these values neither now nor later."""


class SourceOwned(Exception):
    """Another live gateway owns this source; says which and until when."""


class GatewayReplaced(Exception):
    """Another process has this gateway's name now."""


@dataclass(frozen=True, slots=True)
class PresentElsewhere:
    """Another gateway has an agent, as long as its lease lasts; it is good until then, and grows with each renewal."""

    gateway: str
    run: str
    expires_at_us: int


class LandingOther(Exception):
    """The database follows another landing's log; says which."""


@dataclass(frozen=True, slots=True)
class SourceKey:
    tenant: str
    source: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.source}"


def sources_of(entry: LogEntry) -> set[SourceKey]:
    """Those of which it has cuts or fences."""
    cuts = {SourceKey(cut.tenant, cut.source) for cut in entry.cuts}
    return cuts | {SourceKey(fence.tenant, fence.source) for fence in entry.fences}


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """One process of a gateway."""

    name: str
    #: no other process has this word
    run: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A source that a gateway owns from now on."""

    #: above every earlier one
    epoch: int
    #: whether the cut log does not show this owner yet, so that the former one may still write
    needs_fence: bool


@dataclass(frozen=True, slots=True)
class Logged:
    """What the cut log says of a source, up to an entry; the zero values: nothing."""

    #: the highest of its cuts and fences
    epoch: int = 0
    cut: int = 0
    last_gsn: int = 0
    #: and may be further than this says
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the database has followed a cut log, and what it says of some sources there."""

    applied_entry: int
    sources: dict[SourceKey, Logged]


#: tenant and agent
AgentName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says of an agent."""

    #: of the key that it has enrolled; None: any that the CA certifies for it
    key_sha256: str | None
    #: it comes with a certificate, and never without one
    is_enrolled: bool
    is_revoked: bool
    #: the sources that are its own
    sources: frozenset[str] = frozenset()

    def with_sources(self, sources: frozenset[str]) -> "Standing":
        return replace(self, sources=sources)


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source as its agent announced it."""

    source: str
    flavor: str
    server_version: str
    address: str
    policy_sha256: str
    #: see menura.v1.SourceHello
    started: int = 0


@dataclass(frozen=True, slots=True)
class AgentSeen:
    tenant: str
    agent: str
    session: str
    version: str
    hostname: str
    sources: tuple[SourceSeen, ...]
    at_us: int
    #: it has shown a certificate, which is good until then
    is_identified: bool = False
    certificate_expires_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure as an operator reads it; mirrors menura.v1.Error."""

    code: str
    message: str
    terminal: bool
    at_us: int


@dataclass(frozen=True, slots=True)
class SourceConfigured:
    """A source as the control plane has configured it; see menura.v1.SourceConfiguration."""

    source: str
    generation: int
    sha256: str
    document: str


@dataclass(frozen=True, slots=True)
class ConfigurationSeen:
    """What an agent does about a configuration; see menura.v1.EffectiveSource."""

    source: str
    generation: int
    sha256: str
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class ConfigurationDigests:
    """Of all that is configured for an agent (`menura.source_configuration.digest_of`), and of its last report."""

    desired: str
    #: empty before the first one
    reported: str


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """What an agent says of its software; see menura.v1.EffectiveVersion, `state` is the name of its State."""

    #: of the order that it answers; 0: none has come
    generation: int
    version: str
    #: "deb", "rpm", "tar"; empty: installed in another form
    format: str
    machine: str
    state: str
    downloaded_bytes: int
    problem: Problem | None
    #: of the agent that says it
    session: str = ""


@dataclass(frozen=True, slots=True)
class PackageDesired:
    """See menura.v1.AgentPackage; `package_id` is the database's name for its bytes."""

    package_id: int
    version: str
    name: str
    sha256: str
    size_bytes: int
    sums: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class VersionDesired:
    """What an agent shall run; see menura.v1.DesiredVersion. No packages: its order is withdrawn."""

    generation: int
    package: PackageDesired | None
    way_back: PackageDesired | None


@dataclass(frozen=True, slots=True)
class ColumnSeen:
    name: str
    column_type: str
    nullable: bool
    charset: str = ""
    ignored: bool = False
    generated: bool = False


@dataclass(frozen=True, slots=True)
class KeySeen:
    name: str
    unique: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignKeySeen:
    name: str
    columns: tuple[str, ...]
    #: database and table
    parent: tuple[str, str]
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSeen:
    """One table of a cartography."""

    database: str
    table: str
    engine: str
    collation: str
    estimated_rows: int | None
    size_bytes: int | None
    columns: tuple[ColumnSeen, ...]
    keys: tuple[KeySeen, ...]
    denied: bool
    foreign_keys: tuple[ForeignKeySeen, ...] = ()
    #: that there are beside these
    more_foreign_keys: int = 0


@dataclass(frozen=True, slots=True)
class CartographyEnd:
    """What a cartography says beside its tables."""

    flavor: str
    server_version: str
    server_identity: str
    digest: bytes
    #: `table_hash` of all tables that there are; None: they were not told, but those that differ
    names: Collection[int] | None


def table_hash(database: str, table: str) -> int:
    """64 bits: of half a million tables two have the same with a probability below 1e-8."""
    return int.from_bytes(blake2b(f"{len(database)}:{database}{table}".encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class TableEffective:
    """A table's state as the agent says; `state` is the name of a menura.v1.TableState.State."""

    database: str
    table: str
    state: str
    problem: Problem | None = None
    ignored_columns: tuple[str, ...] = ()
    #: that its policy lets be ordered for rows that the log does not hold
    most_rereads_per_hour: int = 0
    #: None: the agent does not tell it
    withheld: "Withheld | None" = None


@dataclass(frozen=True, slots=True)
class Withheld:
    """What the policy of the database's host keeps back of a table's columns; see `menura.v1.Withheld`."""

    #: of the agent's; empty: it has none
    memory: str = ""
    columns: bool = False
    freed: int = 0


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A transaction that holds what others wait for."""

    process: int
    #: as the server says it
    since: str


@dataclass(frozen=True, slots=True)
class OtherServerSeen:
    """A server in place of the one that was read; see menura.v1.OtherServer."""

    identity: str
    server: str
    former_server: str
    lake_position: str
    oldest_position: str
    end_position: str
    goes_on_at: str
    lacking: str
    lacking_transactions: int | None


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """From a heartbeat; None where the agent does not know."""

    source: str
    read_position: str
    source_position: str
    lag_us: int | None
    rows: int
    transactions: int
    read_bytes: int
    sent_bytes: int
    credit_wait_us: int
    problem: Problem | None = None
    decode_cpu_us: int = 0
    restarts: int = 0
    credit_bytes: int | None = None
    log_retention_seconds: int | None = None
    log_room_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """What an agent says of itself, and of sources that it holds."""

    tenant: str
    agent: str
    resident_memory_bytes: int
    cpu_us: int
    sources: Sequence[SourceHealth]
    at_us: int
    #: until the next one
    interval_ms: int = 1000


@dataclass(frozen=True, slots=True)
class TableDesired:
    """A table to sync. Exactly one of the five is set when the sync has not begun yet; none when it goes on."""

    database: str
    table: str
    start_position: LandedPosition | None = None
    start_text: str = ""
    #: with `start_text`: where the table was before somebody altered its position, and why
    altered_from: LandedPosition | None = None
    altered_why: str = ""
    start_oldest: bool = False
    start_now: bool = False
    #: the dump that brings its earlier rows
    start_dump: str = ""
    #: number of the newest event that says that earlier rows may differ from their source; 0: none does
    unlogged_gsn: int = 0
    #: number at which a dump of it that runs has begun; 0: none has
    dump_gsn: int = 0
    #: of one that goes on: the lake may lack rows of before its start
    earlier_rows_missing: bool = False
    #: an earlier sync has brought rows; only with a start
    was_synced: bool = False


@dataclass(frozen=True, slots=True)
class SourceDesired:
    source: str
    generation: int
    tables: tuple[TableDesired, ...]
    #: identity of the other server that somebody has accepted; see menura.v1.Replicate
    accepted_server: str = ""
    #: what the agent's operator should know of it; see menura.v1.DesiredState
    notice: str = ""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """See menura.v1.DumpRange."""

    number: int
    lower: str
    upper: str


@dataclass(frozen=True, slots=True)
class DumpPlanned:
    """See menura.v1.DumpPlan; whoever makes one of a message sees to it that the ranges leave nothing out."""

    key: tuple[str, ...]
    ranges: tuple[KeyRange, ...]
    estimated_rows: int | None
    estimated_bytes: int | None
    runway_seconds: int | None
    needed_seconds: int | None
    warning: str
    least_key: float | None = None
    greatest_key: float | None = None


@dataclass(frozen=True, slots=True)
class DumpDesired:
    """A dump that is not over; see menura.v1.DumpOrder."""

    dump: str
    database: str
    table: str
    priority: int
    paused: bool
    workers: int
    rows_per_second: int
    bytes_per_second: int
    started_gsn: int
    plan: DumpPlanned | None
    remaining: tuple[KeyRange, ...]
    next_chunk: int
    #: from now on it waits so long before it begins
    begins_in_seconds: int = 0
    #: a verification: its chunks are digests
    verifies: bool = False
    #: of these rows alone; of no verification it is a repair
    focus: LandedFocus | None = None

    @property
    def repairs(self) -> bool:
        return self.focus is not None and not self.verifies


@dataclass(frozen=True, slots=True)
class DumpsDesired:
    generation: int
    dumps: tuple[DumpDesired, ...]


@dataclass(frozen=True, slots=True)
class DumpSeen:
    """What a dump is doing, as the agent says; `state` is the name of a menura.v1.DumpStatus.State."""

    dump: str
    state: str
    reason: str
    rows_per_second: int
    bytes_per_second: int
    uncommitted_rows: int


@dataclass(frozen=True, slots=True)
class SourceCommitted:
    """Where a source's last committed cut ended; the zero values mean that there is none yet."""

    epoch: int = 0
    cut: int = 0
    last_gsn: int = 0
    last_transaction_id: int = 0
    position: LandedPosition | None = None
    ahead: tuple[LandedAhead, ...] = field(default=())
    #: why cuts that stand in the log are held back; None: they are not
    quarantine: Problem | None = None
    #: some wait for a lock, so the log may be further
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A source that is held back: the entries of the log that its held cuts stand in, the first and the last."""

    key: SourceKey
    entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Sources of an entry whose part of it is in the log, and is not applied."""

    quarantined: frozenset[SourceKey] = frozenset()
    #: another transaction of the database holds a row of theirs
    blocked: frozenset[SourceKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Removable:
    """Up to where nobody needs the cut log any more, and who needs what comes next."""

    #: all up to it is in the database, and in every lake for good; 0: nothing is
    entry: int
    #: in words; '': nobody, but that more has not been committed
    held_by: str = ""
    #: when the lake of which `held_by` speaks was heard last; 0: never, or it speaks of none
    heard_at_us: int = 0


#: waits so many seconds; whether something may be new. Raises `RegistryUnavailable`
WaitForChange = Callable[[float], bool]


class Registry(Protocol):
    def changes(self) -> AbstractContextManager[WaitForChange] | None:
        """Tells as soon as somebody has changed what is asked of agents, or who they are; None: it can't."""

    def record_agent(self, agent: AgentSeen) -> None:
        """An agent's Control_Config stream opened.

        Where it has no certificate: creates the tenant, the agent and its sources when new, and the sources are its own
        from then on. With one nothing is created, and sources stay whose they are.
        """

    def standings(self, names: Sequence[AgentName]) -> dict[AgentName, Standing]:
        """What is known of those agents that there are."""

    def enrolled_elsewhere(self, tenant: str, agent: str, sources: Sequence[str]) -> frozenset[str]:
        """Those of the sources that are another agent's, which comes with a certificate."""

    def configuration_digests(self, names: Sequence[AgentName]) -> dict[AgentName, ConfigurationDigests]:
        """Of those agents that there are; the gateway polls it, and compares, so that no change is missed."""

    def configurations(self, name: AgentName) -> tuple[SourceConfigured, ...]:
        """All sources that are configured for the agent."""

    def record_configurations(
        self, name: AgentName, seen: Sequence[ConfigurationSeen], reported: str, at_us: int
    ) -> None:
        """The agent's whole report, with its digest."""

    def record_version(self, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
        """What an agent says that it runs, and how far it is with what was ordered; False: nobody knows the agent.

        What was told before a report that is here already changes nothing."""

    def version_orders(self, names: Collection[AgentName]) -> dict[AgentName, int]:
        """Generation of each agent's order that is in work, or of a withdrawal that it has not answered; 0: none is.

        The gateway polls it."""

    def desired_version(self, name: AgentName) -> VersionDesired | None:
        """What the agent shall run, or that its order is withdrawn; None: nothing is ordered."""

    def package_piece(self, package_id: int, offset: int, size_bytes: int) -> bytes:
        """At most 128 KiB of a package from there, fewer only at its end; empty: it is gone."""

    def move_rollouts(self, at_us: int) -> int:
        """Look after the rollouts whose turn it is by this clock; how many."""

    def record_refusal(self, name: AgentName, actor: str, problem: Problem) -> None:
        """What was refused in an agent's name goes into the audit log, and is shown at the agent if there is one."""

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        """Its last stream closed; ignored when a newer session is known."""

    def record_heartbeats(self, beats: Sequence[HeartbeatSeen]) -> None:
        """One of each agent, which is there."""

    def cartography_digest(self, key: SourceKey) -> bytes:
        """Of the cartography that is recorded whole; empty: none."""

    def begin_cartography(self, key: SourceKey, base: bytes) -> bool:
        """Tables are about to be told: all, or those that differ from the cartography of digest `base`.

        False: another one is recorded, or nobody knows the source. From here to its end no cartography counts as whole.
        """

    def record_tables(self, key: SourceKey, tables: Sequence[TableSeen], gone: Sequence[tuple[str, str]]) -> None:
        """Some of those that there are, and of those that are no longer there; what is recorded of others stays.

        A table that is gone is marked, its sync kept.
        """

    def end_cartography(self, key: SourceKey, told: CartographyEnd, at_us: int) -> None:
        """All was told. Tables that are not among its names are gone."""

    def record_effective(
        self,
        key: SourceKey,
        generation: int,
        tables: Sequence[TableEffective],
        problem: Problem | None,
        at_us: int,
        other_server: OtherServerSeen | None = None,
        warnings: Sequence[Problem] = (),
    ) -> None:
        """Ignored when `generation` is not the desired one."""

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None: ...

    def desired(self, key: SourceKey) -> SourceDesired:
        """The whole desired state; a table that stopped with an error is absent until it is started again."""

    def generations(self, tenants_sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
        """Current generation of each; the gateway polls it to notice what the API changed."""

    def claim_landing(self, url: str, identity: str) -> str:
        """The database's name for this landing, which is the only one that it follows. Raises `LandingOther`.

        The first gateway's `url` becomes the name; whoever reaches the same landing by another address gets it too.
        """

    def renew_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
        """This process lives, and owns these sources, by their epochs. Raises `GatewayReplaced`."""

    def begin_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> None:
        """A process has started; another one of its name has to end."""

    def end_gateway(self, gateway: GatewayRun) -> None:
        """It stops: what it owns is free at once."""

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        """The agent is at this gateway from now on, under an epoch above every earlier one.

        Not while another gateway has it that lives, but for the same session, which came here from there.
        """

    def release_presence(self, name: AgentName, gateway: GatewayRun, epoch: int) -> bool:
        """The agent may be anywhere; ignored, for False, where that presence is over already."""

    def presences(self, gateway: GatewayRun) -> dict[AgentName, int]:
        """Epochs of the agents that this process has."""

    def assign_source(self, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
        """Make this gateway the source's owner, under an epoch of its own.

        Raises `SourceOwned` while another gateway lives that owns it for another run of an agent: an agent that comes
        here itself takes its sources along.
        """

    def release_source(self, key: SourceKey, gateway: GatewayRun, epoch: int) -> None:
        """Free for others at once; ignored where it has another owner."""

    def followed(self, landing: str, keys: Sequence[SourceKey]) -> Followed:
        """At one moment."""

    def applied_entry(self, landing: str) -> int:
        """Number of the last cut log entry of this landing that the database holds; 0 for none."""

    def apply_entry(self, landing: str, entry: LogEntry) -> HeldBack:
        """Follow the cut log: positions, started and stopped tables, counts, the ledger of chunks; idempotent.

        A stopped table's sync becomes 'failed' with its position, and the source's generation grows. A source that
        another transaction holds delays no other one.
        """

    def blocked(self, landing: str) -> list[Held]:
        """Sources whose part of entries of this landing waits for a lock."""

    def lock_holders(self) -> Mapping[LockHolder, str]:
        """Who holds what others wait for in the database, in words; none where it can't say."""

    def apply_blocked(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        """Apply what an entry has of such a source; False while it is locked. Entries come in order."""

    def held(self, landing: str, *, asked: bool) -> list[Held]:
        """Sources in quarantine by cuts of this landing; `asked`: only those that somebody wants to be tried again."""

    def apply_held(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        """Apply a held entry's cuts of one source; False when it is refused again, which is then no longer asked for.

        With the last entry the quarantine ends. Entries come in order.
        """

    def removable(self, landing: str) -> Removable:
        """See there. Lakes are those whose sinks have reported to the database; without any nothing is removable."""

    def horizon(self, landing: str, identity: str, first_entry: int, at_us: int) -> Horizon:
        """What the database has by the log, at one moment."""

    def apply_horizon(self, landing: str, horizon: Horizon) -> None:
        """In place of all entries up to its own; idempotent. What the database has of before is replaced."""

    def committed(self, key: SourceKey) -> SourceCommitted: ...

    def last_cuts(self, key: SourceKey) -> dict[TableName, int | None]:
        """Of each table of the source the last committed cut with files of it; 0: none; None: not known."""

    def order_verifications(self, gateway: GatewayRun, at_us: int) -> int:
        """Order the verifications whose turn it is by this clock, of sources that the gateway owns; how many."""

    def dumps(self, key: SourceKey) -> DumpsDesired:
        """All dumps of the source that are not over, with what is left of each by the ledger; none in quarantine."""

    def dump_generations(self, keys: Sequence[SourceKey]) -> dict[SourceKey, int]:
        """Of the desired dumps; grows with each command, each plan and each DUMP_STARTED or DUMPED event."""

    def record_dump_plan(self, key: SourceKey, dump: str, plan: DumpPlanned, at_us: int) -> None:
        """The first one counts; ignored when it has one or is over."""

    def record_dump_status(self, key: SourceKey, dumps: Sequence[DumpSeen], at_us: int) -> None: ...

    def record_dump_failed(self, key: SourceKey, dump: str, problem: Problem, at_us: int) -> None:
        """The dump is over; its table's sync says that earlier rows are missing and why."""
