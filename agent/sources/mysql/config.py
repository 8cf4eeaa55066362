"""What a MySQL or MariaDB source has in the configuration beside what every source has: its servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent.config_entries import TLS_FILES, Entry, Secret, address_of, host_of, is_this_host, password_of, tls_files
from agent.settings import SourceConfig

DEFAULT_PORT = 3306
KEYS = ("client", "binlog", "server_id", "harmless_statements")
MOST_HARMLESS = 100


class TlsMode(StrEnum):
    """MySQL's own words (--ssl-mode). By default VERIFY_IDENTITY beyond this host: others send the password to whoever
    answers."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify_ca"
    VERIFY_IDENTITY = "verify_identity"


@dataclass(frozen=True, slots=True)
class ServerTls:
    mode: TlsMode = TlsMode.PREFERRED
    #: empty: those that this host trusts
    ca: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to reach one database server."""

    host: str
    user: str
    port: int = DEFAULT_PORT
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: ServerTls = field(default_factory=ServerTls)
    #: of the source, under which it is written
    section: str = field(default="client", compare=False)

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlConfig(SourceConfig):
    client: ServerConfig
    #: where the replication stream is read; often the same server
    binlog: ServerConfig
    #: replica server id; 0: derived from (tenant, agent, source)
    server_id: int = 0
    #: database and table, lower-cased: a logged statement that changes one of these by its name changes no other
    harmless_statements: frozenset[tuple[str, str]] = frozenset()

    @property
    def address(self) -> str:
        return self.binlog.address


def configure(common: SourceConfig, entry: Entry, entries: Mapping[str, Entry]) -> MysqlConfig:
    """The source's own entries; raises `ConfigError`."""
    client = _server(entry.required(entries, "client"))
    binlog = _server(entries["binlog"], "binlog") if "binlog" in entries else client
    server_id = entries["server_id"].whole_number(0, 2**32 - 1) if "server_id" in entries else 0
    return MysqlConfig(
        name=common.name,
        kind=common.kind,
        filter=common.filter,
        dump=common.dump,
        unlogged=common.unlogged,
        client=client,
        binlog=binlog,
        server_id=server_id,
        harmless_statements=_harmless(entries["harmless_statements"])
        if "harmless_statements" in entries
        else frozenset(),
    )


def _harmless(entry: Entry) -> frozenset[tuple[str, str]]:
    items = entry.items()
    if len(items) > MOST_HARMLESS:
        raise entry.error(f"has {len(items)} tables", f"Name at most {MOST_HARMLESS}")
    found = set()
    for item in items:
        database, dot, table = item.text().lower().partition(".")
        if not (database and dot and table):
            raise item.error("is no DATABASE.TABLE", "Name tables as percona.heartbeat")
        found.add((database, table))
    return frozenset(found)


def _server(entry: Entry, section: str = "client") -> ServerConfig:
    entries = entry.mapping(("host", "port", "user", "password", "password_file", "password_env", "tls"))
    host = host_of(entry.required(entries, "host"))
    return ServerConfig(
        host=host,
        user=entry.required(entries, "user").text(),
        port=entries["port"].whole_number(1, 65535) if "port" in entries else DEFAULT_PORT,
        password=password_of(entry, entries),
        tls=_server_tls(host, entries.get("tls")),
        section=section,
    )


def _server_tls(host: str, entry: Entry | None) -> ServerTls:
    entries = {} if entry is None else entry.mapping(("mode", *TLS_FILES))
    by_default = TlsMode.PREFERRED if is_this_host(host) and "ca" not in entries else TlsMode.VERIFY_IDENTITY
    if entry is None:
        return ServerTls(by_default)
    mode = entries["mode"].one_of(TlsMode, tuple(TlsMode)) if "mode" in entries else by_default
    # of the CAs that a host trusts each certifies whom it likes: without a name to compare that proves nothing
    return ServerTls(mode, *tls_files(entry, entries, mode, needs_ca=mode is TlsMode.VERIFY_CA))
