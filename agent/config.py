"""The agent's configuration file, read strictly.

Comes in: the YAML file that the database's owner wrote. Goes out: frozen values. An unknown key, a wrong
type or a missing value is one line that names file, line, key and fix. Secrets show as '***'.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import yaml
from menura.addresses import is_loopback
from menura.naming import is_identity

from agent.errors import ConfigError, ConfigMalformed, ConfigUnreadable, GatewayInsecure
from agent.filter import Filter, Policy
from agent.unlogged import UnloggedChanges, UnloggedPolicy
from agent.windows import Window, WindowInvalid

Value = TypeVar("Value")

DEFAULT_MYSQL_PORT = 3306
DEFAULT_REPLICA_LAG_SECONDS = 60

MOST_WORKERS = 64
_MOST_PER_SECOND = 9_999_999_999


class TlsMode(StrEnum):
    """MySQL's own words (--ssl-mode)."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify_ca"
    VERIFY_IDENTITY = "verify_identity"


class Secret:
    """A value that no repr, log or error shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "'***'"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class ServerTls:
    mode: TlsMode = TlsMode.PREFERRED
    ca: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to reach one database server."""

    host: str
    user: str
    port: int = DEFAULT_MYSQL_PORT
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: ServerTls = field(default_factory=ServerTls)
    #: of the source, under which it is written
    section: str = field(default="client", compare=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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


@dataclass(frozen=True, slots=True)
class SourceConfig:
    name: str
    client: ServerConfig
    #: where the replication stream is read; often the same server
    binlog: ServerConfig
    #: replica server id; 0: derived from (tenant, agent, source)
    server_id: int
    filter: Filter
    dump: DumpConfig = DumpConfig()
    unlogged: UnloggedPolicy = field(default_factory=UnloggedPolicy)


@dataclass(frozen=True, slots=True)
class GatewayTls:
    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    address: str
    tls: GatewayTls | None


@dataclass(frozen=True, slots=True)
class AgentConfig:
    tenant: str
    agent: str
    gateway: GatewayConfig
    sources: tuple[SourceConfig, ...]
    state_folder: str = ""


def load(path: Path) -> AgentConfig:
    """Read and check the file; raises `ConfigError`, one line."""
    doing = f"reading the configuration {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise ConfigUnreadable(
            doing,
            f"{broken.strerror if isinstance(broken, OSError) else 'it is not UTF-8'}",
            remedy="Pass --config FILE",
        ) from broken
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigMalformed(
            doing,
            f"{line}this is not YAML: {broken.problem or broken.context}",
            remedy="Correct that line: two spaces per level, 'key: value', quotes around text with ':' or '#'",
        ) from broken
    except yaml.YAMLError as broken:
        raise ConfigMalformed(
            doing, "this is not YAML: a forbidden character", remedy="Save it as plain UTF-8"
        ) from broken
    if root is None:
        raise ConfigMalformed(doing, "the file is empty", remedy="Write tenant, gateway and sources into it")
    return _agent(_Entry(path, "", root))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A YAML node, its place in the file and its path of keys."""

    file: Path
    path: str
    node: yaml.Node

    def error(self, found: str, remedy: str) -> ConfigError:
        where = f"line {self.node.start_mark.line + 1}: {self.path or 'the file'}"
        return ConfigError(f"reading the configuration {self.file}", f"{where} {found}", remedy=remedy)

    def is_empty(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"

    def mapping(self, allowed: tuple[str, ...] | None = None) -> dict[str, "_Entry"]:
        """Its keys; only the `allowed` ones, or any when None."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("is not a mapping", f"Write {self.path or 'the file'} as 'key: value' lines")
        entries: dict[str, _Entry] = {}
        for key_node, value_node in self.node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            entry = _Entry(self.file, f"{self.path}.{key}" if self.path else key, value_node)
            here = _Entry(self.file, entry.path, key_node)
            if allowed is not None and key not in allowed:
                raise here.error("is not a known key", f"Remove it, or use one of {', '.join(allowed)}")
            if key in entries:
                raise here.error("is given twice", "Keep one of them")
            entries[key] = entry
        return entries

    def text(self) -> str:
        if (
            not isinstance(self.node, yaml.ScalarNode)
            or self.node.tag != "tag:yaml.org,2002:str"
            or not self.node.value
        ):
            raise self.error("is not a text", f'Write {self.path}: "..." with quotes')
        return str(self.node.value)

    def whole_number(self, least: int, most: int) -> int:
        node = self.node
        if (
            not isinstance(node, yaml.ScalarNode)
            or re.fullmatch(r"[0-9]{1,10}", node.value) is None
            or not least <= int(node.value) <= most
        ):
            raise self.error(
                f"is not a whole number from {least} to {most}", f"Write {self.path}: {most}, or leave it out"
            )
        return int(node.value)

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def items(self) -> tuple["_Entry", ...]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("is not a list", f"Write {self.path}: [name, name]")
        return tuple(_Entry(self.file, f"{self.path}[{i}]", node) for i, node in enumerate(self.node.value))

    def one_of(self, kind: Callable[[str], Value], words: tuple[str, ...]) -> Value:
        word = self.text() if not self.is_empty() else ""
        if word not in words:
            raise self.error(f"is not one of {', '.join(words)}", f"Write {self.path}: {words[0]}")
        return kind(word)

    def required(self, entries: Mapping[str, "_Entry"], key: str) -> "_Entry":
        if key not in entries or entries[key].is_empty():
            path = f"{self.path}.{key}" if self.path else key
            raise self.error(f"lacks {key}", f"Add {path}: ...")
        return entries[key]


def _agent(root: _Entry) -> AgentConfig:
    entries = root.mapping(("tenant", "agent", "gateway", "state_folder", "sources"))
    tenant = _identity(root.required(entries, "tenant"))
    agent = _identity(entries["agent"]) if "agent" in entries else _host_identity(root)
    gateway = _gateway(root.required(entries, "gateway"))
    listed = root.required(entries, "sources")
    sources = tuple(_source(name, entry) for name, entry in listed.mapping().items())
    if not sources:
        raise listed.error("is empty", "Add a source: 'shop: {client: {host: ..., user: ...}}'")
    state_folder = entries["state_folder"].text() if "state_folder" in entries else ""
    return AgentConfig(tenant, agent, gateway, sources, state_folder)


def _identity(entry: _Entry) -> str:
    name = entry.text()
    if not is_identity(name):
        raise entry.error(
            "is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_', with a letter or digit at both ends"
        )
    return name


def _host_identity(root: _Entry) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:63].strip("-")
    if not is_identity(plain):
        raise root.error("lacks agent, and the host's name makes no plain one", "Add agent: NAME")
    return plain


def _gateway(entry: _Entry) -> GatewayConfig:
    entries = entry.mapping(("address", "tls"))
    address_entry = entry.required(entries, "address")
    address = address_entry.text()
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise address_entry.error("is not HOST:PORT", 'Write gateway.address: "127.0.0.1:7070"')
    if "tls" in entries and not entries["tls"].is_empty():
        return GatewayConfig(address, _gateway_tls(entries["tls"]))
    if not is_loopback(host):
        raise GatewayInsecure(
            f"reading the configuration {entry.file}",
            f"line {address_entry.node.start_mark.line + 1}: gateway.address {address} is not on this host, and"
            " there is no gateway.tls",
            data="Nothing was sent",
            remedy="Add gateway.tls: {ca: FILE, certificate: FILE, key: FILE}, or use 127.0.0.1 through a tunnel",
        )
    return GatewayConfig(address, None)


def _gateway_tls(entry: _Entry) -> GatewayTls:
    entries = entry.mapping(("ca", "certificate", "key"))
    files = {key: _file(entries[key]) if key in entries else None for key in ("ca", "certificate", "key")}
    if (files["certificate"] is None) != (files["key"] is None):
        raise entry.error("has one of certificate and key", "Give both or none")
    return GatewayTls(files["ca"], files["certificate"], files["key"])


def _file(entry: _Entry) -> bytes:
    name = entry.text()
    try:
        return Path(name).read_bytes()
    except OSError as broken:
        raise entry.error(f"names {name}: {broken.strerror}", f"Make {entry.path} name a readable file") from broken


def _source(name: str, entry: _Entry) -> SourceConfig:
    if not is_identity(name):
        raise entry.error("is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_'")
    entries = entry.mapping(("client", "binlog", "server_id", "filter_policy", "filter", "unlogged_changes", "dump"))
    client = _server(entry.required(entries, "client"))
    binlog = _server(entries["binlog"], "binlog") if "binlog" in entries else client
    server_id = entries["server_id"].whole_number(0, 2**32 - 1) if "server_id" in entries else 0
    policy = Policy.ACCEPT
    if "filter_policy" in entries:
        policy = entries["filter_policy"].one_of(Policy, tuple(Policy))
    listed: dict[str, _Entry] = {}
    if "filter" in entries and not entries["filter"].is_empty():
        listed = entries["filter"].mapping()
    rules = {table: _rule(rule) for table, rule in listed.items()}
    dump = _dump(entries["dump"]) if "dump" in entries and not entries["dump"].is_empty() else DumpConfig()
    filter_ = Filter(policy, rules, _renamed_from(listed))
    return SourceConfig(name, client, binlog, server_id, filter_, dump, _unlogged(entries, listed))


def _renamed_from(listed: Mapping[str, _Entry]) -> dict[str, tuple[str, ...]]:
    rules = {table: rule.mapping() for table, rule in listed.items() if not rule.is_empty()}
    return {table: rule["renamed_from"].texts() for table, rule in rules.items() if "renamed_from" in rule}


def _unlogged(entries: Mapping[str, _Entry], listed: Mapping[str, _Entry]) -> UnloggedPolicy:
    def word(entry: _Entry) -> UnloggedChanges:
        return entry.one_of(UnloggedChanges, tuple(UnloggedChanges))

    rules = {table: rule.mapping() for table, rule in listed.items() if not rule.is_empty()}
    tables = {table: word(rule["unlogged_changes"]) for table, rule in rules.items() if "unlogged_changes" in rule}
    default = word(entries["unlogged_changes"]) if "unlogged_changes" in entries else UnloggedChanges.REREAD
    return UnloggedPolicy(default, tables)


def _dump(entry: _Entry) -> DumpConfig:
    most = {
        "workers": (1, MOST_WORKERS),
        "max_rows_per_second": (0, _MOST_PER_SECOND),
        "max_bytes_per_second": (0, _MOST_PER_SECOND),
        "max_threads_running": (0, 1_000_000),
        "max_replica_lag_seconds": (0, 86_400),
        "chunk_seconds": (1, 60),
        "max_chunk_rows": (1, 1_000_000),
        "max_rereads_per_hour": (1, 3_600),
    }
    entries = entry.mapping((*most, "windows"))
    numbers = {key: entries[key].whole_number(*bounds) for key, bounds in most.items() if key in entries}
    windows = tuple(map(_window, entries["windows"].items())) if "windows" in entries else ()
    return DumpConfig(**numbers, windows=windows)


def _window(entry: _Entry) -> Window:
    try:
        return Window.parse(entry.text())
    except WindowInvalid as wrong:
        raise entry.error(str(wrong), f'Write {entry.path}: "22:00-06:00 Europe/Berlin"') from wrong


def _rule(entry: _Entry) -> tuple[str, ...] | None:
    if entry.is_empty():
        return None
    entries = entry.mapping(("ignored_columns", "renamed_from", "unlogged_changes"))
    if "ignored_columns" in entries:
        return entries["ignored_columns"].texts()
    return () if entries else None


def _server(entry: _Entry, section: str = "client") -> ServerConfig:
    entries = entry.mapping(("host", "port", "user", "password", "password_file", "password_env", "tls"))
    return ServerConfig(
        host=entry.required(entries, "host").text(),
        user=entry.required(entries, "user").text(),
        port=entries["port"].whole_number(1, 65535) if "port" in entries else DEFAULT_MYSQL_PORT,
        password=_password(entry, entries),
        tls=_server_tls(entries["tls"]) if "tls" in entries else ServerTls(),
        section=section,
    )


def _password(entry: _Entry, entries: Mapping[str, _Entry]) -> Secret:
    given = [key for key in ("password", "password_file", "password_env") if key in entries]
    if len(given) > 1:
        raise entry.error(f"has {' and '.join(given)}", "Keep one of them")
    if not given or entries[given[0]].is_empty():
        return Secret("")
    chosen = entries[given[0]]
    if given[0] == "password":
        node = chosen.node
        return Secret("" if isinstance(node, yaml.ScalarNode) and node.value == "" else chosen.text())
    if given[0] == "password_file":
        return Secret(_file(chosen).decode("utf-8").rstrip("\r\n"))
    variable = chosen.text()
    if variable not in os.environ:
        raise chosen.error(
            f"names the environment variable {variable}, which is not set", f"Set {variable} or use password_file"
        )
    return Secret(os.environ[variable])


def _server_tls(entry: _Entry) -> ServerTls:
    entries = entry.mapping(("mode", "ca", "certificate", "key"))
    mode = entries["mode"].one_of(TlsMode, tuple(TlsMode)) if "mode" in entries else TlsMode.PREFERRED
    for key in ("ca", "certificate", "key"):
        if key in entries:
            _file(entries[key])
    files = {key: entries[key].text() if key in entries else "" for key in ("ca", "certificate", "key")}
    if mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY) and not files["ca"]:
        raise entry.error(
            f"has mode {mode} and no ca", f"Add {entry.path}.ca: FILE, the certificate of the server's CA"
        )
    if bool(files["certificate"]) != bool(files["key"]):
        raise entry.error("has one of certificate and key", "Give both or none")
    return ServerTls(mode, files["ca"], files["certificate"], files["key"])
