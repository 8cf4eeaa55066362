"""Settings of one gateway process, checked when they are made."""

from dataclasses import dataclass
from pathlib import Path

from menura.addresses import is_loopback
from menura.naming import is_identity

from gateway.errors import LandingUnusable, ListenRefused


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of an operator's own PKI; agents must show a certificate that `client_ca` signed."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    #: folder or URL, see `menura.stores`, of the cut log and data files: the same for all gateways of a database
    landing: str
    #: owner of sources and author of log entries; no two live gateways may share it
    name: str = "gateway"
    #: HOST:PORT, port 0 for any free one
    listen: str = "127.0.0.1:7070"
    tls: TlsFiles | None = None
    #: HOST:PORT on which agents enrol with the control plane's CA, which `serve` then needs; empty: without that CA
    enrol_listen: str = ""
    #: an agent ends a cut at the first transaction's end after this time or size
    cut_interval_ms: int = 500
    cut_bytes: int = 16 << 20
    #: bytes of change batches that a source may have on the way or in memory here
    credit_window_bytes: int = 64 << 20
    #: the same of rows that dumps read
    dump_credit_window_bytes: int = 32 << 20
    #: bytes of a stream that may be on their way, or in memory here, before the gateway reads them. Each stream has
    #: so many, also one whose agent sends without credit; a source sends no more within a round trip.
    stream_window_bytes: int = 64 << 10
    #: shortest time between two entries of the cut log; cuts that end meanwhile share the next one
    commit_spacing_ms: int = 100
    heartbeat_interval_ms: int = 1000
    #: the gateway's lease, renewed three times as often: then others may take its sources over
    lease_seconds: float = 15
    #: how often the desired generations are asked for; ten times as long where the database tells of changes
    poll_seconds: float = 0.5
    #: how often it is looked whether a verification is due
    schedule_seconds: float = 5
    #: how often it is looked whether a rollout goes on
    rollout_seconds: float = 1
    cartography_seconds: float = 600
    #: open at a time; further ones are refused before anything is read from them
    max_streams: int = 16_384
    #: from a stream's turn to be read until its Hello is there
    hello_seconds: float = 10
    #: an open cut with rows that hears nothing of its agent for so long, though it could, is dropped
    open_cut_seconds: float = 300
    #: how long landed files and log entries are kept at least; 0: for ever
    keep_landing_hours: int = 24
    #: threads that decode batches and write Parquet, of one tenant; half as many more are there for others
    landing_threads: int = 2

    def __post_init__(self) -> None:
        if not is_identity(self.name):
            raise ListenRefused(
                "reading the gateway's settings", f"name {self.name!r}", remedy="Use 1 to 63 of a-z, 0-9, '-' and '_'"
            )
        if not self.landing:
            raise LandingUnusable("reading the gateway's settings", "no landing", remedy="Set it to a folder or a URL")
        host = _host(self.listen)
        if self.enrol_listen:
            _host(self.enrol_listen)
        if self.tls is not None and self.enrol_listen:
            raise ListenRefused(
                "reading the gateway's settings",
                "there are TLS files and a CA of the control plane",
                remedy="Give --ca alone, or --tls-certificate, --tls-key and --tls-client-ca",
            )
        if not self.is_identified and not is_loopback(host):
            raise ListenRefused(
                "opening the gateway's port",
                f"{self.listen} can be reached from other machines, and there is no TLS: anybody could be any agent",
                remedy="Give --ca FOLDER, which the gateway makes by itself, and enrol agents: menura token create. Or"
                " listen on 127.0.0.1",
            )

    @property
    def is_identified(self) -> bool:
        """Whether agents come with certificates. Else they are taken at their word, on loopback."""
        return self.tls is not None or bool(self.enrol_listen)


def _host(listen: str) -> str:
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenRefused("reading a listen address", repr(listen), remedy="Set it to HOST:PORT")
    return host
