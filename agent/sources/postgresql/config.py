"""What a PostgreSQL source has in the configuration beside what every source has: its servers, slot and publication."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent.config_entries import TLS_FILES, Entry, Secret, address_of, host_of, is_this_host, password_of, tls_files
from agent.settings import SourceConfig

DEFAULT_PORT = 5432
DEFAULT_PUBLICATION = "menura"
KEYS = ("client", "replication", "slot", "publication", "filtered_by", "max_streamed_bytes")

MOST_STREAMED_BYTES = 1 << 50
#: NAMEDATALEN - 1: what a server cuts longer names to
MAX_NAME_BYTES = 63
_SLOT = re.compile(rf"[a-z0-9_]{{1,{MAX_NAME_BYTES}}}")
_DIGEST_SIGNS = 8


class TlsMode(StrEnum):
    """libpq's own words (sslmode). `PREFER`: TLS where the server has it, unverified. By default VERIFY_FULL beyond
    this host: others log in at whoever answers."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


class FilteredBy(StrEnum):
    """Who leaves out dropped tables and ignored columns. `SERVER`: the publication lacks them, where it can."""

    AGENT = "agent"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class ServerTls:
    mode: TlsMode = TlsMode.PREFER
    #: empty: those that this host trusts
    ca: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to reach one database of one server."""

    host: str
    user: str
    database: str
    port: int = DEFAULT_PORT
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: ServerTls = field(default_factory=ServerTls)
    #: of the source, under which it is written
    section: str = field(default="client", compare=False)

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlConfig(SourceConfig):
    #: describes the tables and gives their rows; may be a standby
    client: ServerConfig
    #: where changes are read; often the same server
    replication: ServerConfig
    #: empty: derived from (tenant, agent, source), see `slot_of`
    slot: str = ""
    publication: str = DEFAULT_PUBLICATION
    filtered_by: FilteredBy = FilteredBy.AGENT
    #: of transactions in progress, in files without a name; 0: the server keeps them until their commit
    max_streamed_bytes: int = 0

    @property
    def address(self) -> str:
        return f"{self.replication.address}/{self.replication.database}"

    def slot_of(self, tenant: str, agent: str) -> str:
        """The slot's name: as configured, or the same at each start and unlikely to meet another one.

        >>> from agent.filter import Filter
        >>> server = ServerConfig("db1", "menura", "shop")
        >>> config = PostgresqlConfig(
        ...     name="shop-eu", kind="postgresql", filter=Filter(), client=server, replication=server
        ... )
        >>> config.slot_of("acme", "agent-1")
        'menura_shop_eu_f22fe7df'
        """
        if self.slot:
            return self.slot
        digest = hashlib.sha256(f"{tenant}/{agent}/{self.name}".encode()).hexdigest()[:_DIGEST_SIGNS]
        name = re.sub(r"[^a-z0-9_]", "_", self.name.lower())
        return f"{f'menura_{name}'[: MAX_NAME_BYTES - 1 - _DIGEST_SIGNS]}_{digest}"


def configure(common: SourceConfig, entry: Entry, entries: Mapping[str, Entry]) -> PostgresqlConfig:
    """The source's own entries; raises `ConfigError`."""
    client = _server(entry.required(entries, "client"))
    replication = _server(entries["replication"], "replication") if "replication" in entries else client
    if replication.database != client.database:
        raise entries["replication"].error(
            f"names the database {replication.database!r}, and client {client.database!r}: a source is one database",
            "Name the same database in both, and a source for each database",
        )
    return PostgresqlConfig(
        name=common.name,
        kind=common.kind,
        filter=common.filter,
        dump=common.dump,
        unlogged=common.unlogged,
        client=client,
        replication=replication,
        slot=_slot(entries["slot"]) if "slot" in entries else "",
        publication=_publication(entries["publication"]) if "publication" in entries else DEFAULT_PUBLICATION,
        filtered_by=entries["filtered_by"].one_of(FilteredBy, tuple(FilteredBy))
        if "filtered_by" in entries
        else FilteredBy.AGENT,
        max_streamed_bytes=_max_streamed_bytes(entries["max_streamed_bytes"]) if "max_streamed_bytes" in entries else 0,
    )


def _max_streamed_bytes(entry: Entry) -> int:
    """A bound of this host's disk, which only its owner gives."""
    if entry.access.is_remote:
        raise entry.error(
            "is a part of this host's disk, which the control plane can't give away",
            "Leave it out, or configure the source in the agent's own file",
        )
    return entry.whole_number(0, MOST_STREAMED_BYTES)


def _slot(entry: Entry) -> str:
    name = entry.text()
    if _SLOT.fullmatch(name) is None:
        raise entry.error(
            "is no name of a replication slot",
            f"Use 1 to {MAX_NAME_BYTES} of a-z, 0-9 and _, or leave it out",
        )
    return name


def _publication(entry: Entry) -> str:
    name = entry.text()
    if len(name.encode()) > MAX_NAME_BYTES or "\0" in name:
        raise entry.error("is no name of a publication", f"Use at most {MAX_NAME_BYTES} bytes, or leave it out")
    return name


def _server(entry: Entry, section: str = "client") -> ServerConfig:
    entries = entry.mapping(("host", "port", "user", "password", "password_file", "password_env", "database", "tls"))
    host = host_of(entry.required(entries, "host"))
    return ServerConfig(
        host=host,
        user=entry.required(entries, "user").text(),
        database=entry.required(entries, "database").text(),
        port=entries["port"].whole_number(1, 65535) if "port" in entries else DEFAULT_PORT,
        password=password_of(entry, entries),
        tls=_server_tls(host, entries.get("tls")),
        section=section,
    )


def _server_tls(host: str, entry: Entry | None) -> ServerTls:
    entries = {} if entry is None else entry.mapping(("mode", *TLS_FILES))
    by_default = TlsMode.PREFER if is_this_host(host) and "ca" not in entries else TlsMode.VERIFY_FULL
    if entry is None:
        return ServerTls(by_default)
    mode = entries["mode"].one_of(TlsMode, tuple(TlsMode)) if "mode" in entries else by_default
    # of the CAs that a host trusts each certifies whom it likes: without a name to compare that proves nothing
    return ServerTls(mode, *tls_files(entry, entries, mode, needs_ca=mode is TlsMode.VERIFY_CA))
