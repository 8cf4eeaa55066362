"""The values of the configuration. What a kind of source has beside those of every source it adds by inheritance."""

from dataclasses import dataclass, field
from pathlib import Path

from menura.change_batch import Compression
from menura.windows import Window

from agent.filter import Filter
from agent.host_access import RemoteAccess
from agent.identity import IdentityFile, TlsFiles
from agent.unlogged import UnloggedPolicy

DEFAULT_REPLICA_LAG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class DumpConfig:
    """How much of a server dumps may take; what an order says only narrows it. 0: not limited."""

    #: chunks that are read at the same time
    workers: int = 2
    max_rows_per_second: int = 0
    max_bytes_per_second: int = 0
    #: of the server as a whole, the dump's own with them
    max_threads_running: int = 25
    #: of the dump's server, when it is a replica; None: DEFAULT_REPLICA_LAG_SECONDS where this user may see it
    max_replica_lag_seconds: int | None = None
    #: none: always
    windows: tuple[Window, ...] = ()
    #: a chunk should take so long, and has no more rows than that
    chunk_seconds: int = 1
    max_chunk_rows: int = 1_000_000
    #: of one table, for rows that its server changed without logging them; one more stops the table
    max_rereads_per_hour: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What every source has; each kind adds its own."""

    name: str
    #: the name under which its kind is registered
    kind: str
    filter: Filter
    dump: DumpConfig = DumpConfig()
    #: its kind can read the rows that its tables have
    has_snapshots: bool = True
    unlogged: UnloggedPolicy = field(default_factory=UnloggedPolicy)

    @property
    def address(self) -> str:
        """Of the server whose log is read, for people."""
        return ""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    address: str
    #: what the agent has enrolled with, or files of an operator's own CA; None: in the clear, on this host
    tls: IdentityFile | TlsFiles | None
    #: of rows on their way to it
    compression: Compression = Compression.LZ4


@dataclass(frozen=True, slots=True)
class AgentConfig:
    tenant: str
    agent: str
    gateway: GatewayConfig
    sources: tuple[SourceConfig, ...]
    state_folder: str = ""
    #: what sources of the control plane may reach on this host; None: it may configure none
    remote: RemoteAccess | None = None
    #: the file of the host's policy; None: the default one, which need not be there
    policy: Path | None = None
