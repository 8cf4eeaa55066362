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

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.registry.agents import (
    AgentRegistry,
    AgentSeen,
    ConfigurationDigests,
    ConfigurationSeen,
    HeartbeatSeen,
    SourceConfigured,
    SourceHealth,
    SourceSeen,
    Standing,
)
from gateway.registry.cartography import (
    CartographyEnd,
    CartographyRegistry,
    ColumnSeen,
    ForeignKeySeen,
    KeySeen,
    TableSeen,
    table_hash,
)
from gateway.registry.cut_log import (
    CutLogRegistry,
    Followed,
    Held,
    HeldBack,
    LandingOther,
    LockHolder,
    Logged,
    Removable,
    SourceCommitted,
    sources_of,
)
from gateway.registry.dumps import DumpDesired, DumpPlanned, DumpRegistry, DumpsDesired, DumpSeen, KeyRange
from gateway.registry.gateways import (
    Assignment,
    GatewayRegistry,
    GatewayReplaced,
    GatewayRun,
    PresentElsewhere,
    SourceOwned,
)
from gateway.registry.keys import AgentName, Problem, RegistryRefused, RegistryUnavailable, SourceKey
from gateway.registry.tables import (
    OtherServerSeen,
    SourceDesired,
    TableDesired,
    TableEffective,
    TableRegistry,
    Withheld,
)
from gateway.registry.versions import PackageDesired, VersionDesired, VersionRegistry, VersionSeen

#: waits so many seconds; whether something may be new. Raises `RegistryUnavailable`
WaitForChange = Callable[[float], bool]


class Registry(
    GatewayRegistry,
    AgentRegistry,
    VersionRegistry,
    CartographyRegistry,
    TableRegistry,
    DumpRegistry,
    CutLogRegistry,
    Protocol,
):
    """The whole seam."""

    def changes(self) -> AbstractContextManager[WaitForChange] | None:
        """Tells as soon as somebody has changed what is asked of agents, or who they are; None: it can't."""


__all__ = [
    "AgentName",
    "AgentSeen",
    "Assignment",
    "CartographyEnd",
    "ColumnSeen",
    "ConfigurationDigests",
    "ConfigurationSeen",
    "DumpDesired",
    "DumpPlanned",
    "DumpSeen",
    "DumpsDesired",
    "Followed",
    "ForeignKeySeen",
    "GatewayReplaced",
    "GatewayRun",
    "HeartbeatSeen",
    "Held",
    "HeldBack",
    "KeyRange",
    "KeySeen",
    "LandingOther",
    "LockHolder",
    "Logged",
    "OtherServerSeen",
    "PackageDesired",
    "PresentElsewhere",
    "Problem",
    "Registry",
    "RegistryRefused",
    "RegistryUnavailable",
    "Removable",
    "SourceCommitted",
    "SourceConfigured",
    "SourceDesired",
    "SourceHealth",
    "SourceKey",
    "SourceOwned",
    "SourceSeen",
    "Standing",
    "TableDesired",
    "TableEffective",
    "TableSeen",
    "VersionDesired",
    "VersionSeen",
    "WaitForChange",
    "Withheld",
    "sources_of",
    "table_hash",
]
