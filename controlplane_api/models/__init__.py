"""What the control plane remembers, as SQL tables; `migrations` brings a database to this shape.

Each table has one writer's rhythm, so that a commit never waits for a heartbeat: `source` and `sync`
change by commands, `committed_position` by the cut log, `source_health` by heartbeats, `lake`, `lake_source`,
`lake_stop`, `lake_policy`, `lake_joined_view`, `verdict` and `table_proof` by the reports of sinks; these name sources,
tables and views, and so hold before the database knows them. `agent_version` changes by what agents say of their
software.
Whoever changes syncs or dumps of a source locks its `source` row first. Times are microseconds since the epoch, UTC.

Positions are stored as `menura.landing.LandedPosition`, problems as `gateway.registry.Problem`, columns and
keys of a cartography as `ColumnSeen` and `KeySeen`: JSON objects with those fields.
"""

from controlplane_api.models.base import AnyRow, Base, Document, Id
from controlplane_api.models.dumps import Dump, DumpRange, DumpStatus
from controlplane_api.models.gateways import (
    AgentPresence,
    BlockedSource,
    CommittedPosition,
    Gateway,
    Landing,
    Lease,
    Quarantine,
    SourceHealth,
    gateway_lives,
)
from controlplane_api.models.identities import (
    Agent,
    ApiToken,
    AuditEntry,
    CertificateAuthority,
    EnrolmentToken,
    KeptAnswer,
    Tenant,
    WebSession,
)
from controlplane_api.models.joined_views import JoinedView, LakeJoinedView
from controlplane_api.models.lakes import Lake, LakePolicy, LakeSource, LakeStop, Verdict
from controlplane_api.models.ledger import LedgerEntry, LedgerHead
from controlplane_api.models.sources import (
    Source,
    SourceConfiguration,
    SourcePosition,
    SourceTable,
    TableDefinition,
    WantedTable,
)
from controlplane_api.models.syncs import (
    KEPT_EVENTS,
    POSITION_OF_SYNC,
    Operation,
    OperationTable,
    Sync,
    SyncRule,
    TableEvent,
)
from controlplane_api.models.upgrades import (
    AgentPackage,
    AgentPackagePiece,
    AgentRelease,
    AgentVersion,
    Rollout,
    RolloutAgent,
)
from controlplane_api.models.verifications import ProofOfTable, VerificationSchedule

__all__ = [
    "KEPT_EVENTS",
    "POSITION_OF_SYNC",
    "Agent",
    "AgentPackage",
    "AgentPackagePiece",
    "AgentPresence",
    "AgentRelease",
    "AgentVersion",
    "AnyRow",
    "ApiToken",
    "AuditEntry",
    "Base",
    "BlockedSource",
    "CertificateAuthority",
    "CommittedPosition",
    "Document",
    "Dump",
    "DumpRange",
    "DumpStatus",
    "EnrolmentToken",
    "Gateway",
    "Id",
    "JoinedView",
    "KeptAnswer",
    "Lake",
    "LakeJoinedView",
    "LakePolicy",
    "LakeSource",
    "LakeStop",
    "Landing",
    "Lease",
    "LedgerEntry",
    "LedgerHead",
    "Operation",
    "OperationTable",
    "ProofOfTable",
    "Quarantine",
    "Rollout",
    "RolloutAgent",
    "Source",
    "SourceConfiguration",
    "SourceHealth",
    "SourcePosition",
    "SourceTable",
    "Sync",
    "SyncRule",
    "TableDefinition",
    "TableEvent",
    "Tenant",
    "Verdict",
    "VerificationSchedule",
    "WantedTable",
    "WebSession",
    "gateway_lives",
]
