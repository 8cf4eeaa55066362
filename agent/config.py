"""The agent's configuration file, read strictly.

Comes in: the YAML file that the database's owner wrote. Goes out: frozen values. An unknown key, a wrong
type or a missing value is one line that names file, line, key and fix. Secrets show as '***'.
"""

import re
import socket
from collections.abc import Mapping
from pathlib import Path

import yaml
from menura.addresses import is_loopback
from menura.naming import is_identity

from agent.config_entries import Entry, file_of
from agent.errors import ConfigMalformed, ConfigUnreadable, GatewayInsecure
from agent.filter import Filter, Policy
from agent.settings import AgentConfig, DumpConfig, GatewayConfig, GatewayTls, SourceConfig
from agent.source_kind import KindUnknown, SourceKind, default_kind, find_kind, kind_names
from agent.unlogged import UnloggedChanges, UnloggedPolicy
from agent.windows import Window, WindowInvalid

#: of any kind of source; the kind has more
COMMON_KEYS = ("kind", "filter_policy", "filter", "unlogged_changes", "dump")
MOST_WORKERS = 64
_MOST_PER_SECOND = 9_999_999_999


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
    return _agent(Entry(path, "", root))


def _agent(root: Entry) -> AgentConfig:
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


def _identity(entry: Entry) -> str:
    name = entry.text()
    if not is_identity(name):
        raise entry.error(
            "is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_', with a letter or digit at both ends"
        )
    return name


def _host_identity(root: Entry) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:63].strip("-")
    if not is_identity(plain):
        raise root.error("lacks agent, and the host's name makes no plain one", "Add agent: NAME")
    return plain


def _gateway(entry: Entry) -> GatewayConfig:
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


def _gateway_tls(entry: Entry) -> GatewayTls:
    entries = entry.mapping(("ca", "certificate", "key"))
    files = {key: file_of(entries[key]) if key in entries else None for key in ("ca", "certificate", "key")}
    if (files["certificate"] is None) != (files["key"] is None):
        raise entry.error("has one of certificate and key", "Give both or none")
    return GatewayTls(files["ca"], files["certificate"], files["key"])


def _source(name: str, entry: Entry) -> SourceConfig:
    if not is_identity(name):
        raise entry.error("is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_'")
    entries = entry.mapping()
    default = None if "kind" in entries else default_kind()
    kind_name = entry.required(entries, "kind").text() if default is None else default
    kind = _kind(entries.get("kind", entry), kind_name)
    entries = entry.mapping((*COMMON_KEYS, *kind.config_keys))
    policy = Policy.ACCEPT
    if "filter_policy" in entries:
        policy = entries["filter_policy"].one_of(Policy, tuple(Policy))
    listed: dict[str, Entry] = {}
    if "filter" in entries and not entries["filter"].is_empty():
        listed = entries["filter"].mapping()
    rules = {table: _rule(rule) for table, rule in listed.items()}
    dump = _dump(entries["dump"]) if "dump" in entries and not entries["dump"].is_empty() else DumpConfig()
    filter_ = Filter(policy, rules, _renamed_from(listed), kind.identifiers)
    unlogged = _unlogged(entries, listed)
    common = SourceConfig(name=name, kind=kind_name, filter=filter_, dump=dump, unlogged=unlogged)
    return kind.configure(common, entry, entries)


def _kind(entry: Entry, name: str) -> SourceKind:
    try:
        return find_kind(name)
    except KindUnknown as unknown:
        raise entry.error(
            f"names the kind of source {name!r}: {unknown}",
            f"Use one of {', '.join(kind_names())}, or install the package that brings it",
        ) from unknown


def _renamed_from(listed: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    rules = {table: rule.mapping() for table, rule in listed.items() if not rule.is_empty()}
    return {table: rule["renamed_from"].texts() for table, rule in rules.items() if "renamed_from" in rule}


def _unlogged(entries: Mapping[str, Entry], listed: Mapping[str, Entry]) -> UnloggedPolicy:
    def word(entry: Entry) -> UnloggedChanges:
        return entry.one_of(UnloggedChanges, tuple(UnloggedChanges))

    rules = {table: rule.mapping() for table, rule in listed.items() if not rule.is_empty()}
    tables = {table: word(rule["unlogged_changes"]) for table, rule in rules.items() if "unlogged_changes" in rule}
    default = word(entries["unlogged_changes"]) if "unlogged_changes" in entries else UnloggedChanges.REREAD
    return UnloggedPolicy(default, tables)


def _dump(entry: Entry) -> DumpConfig:
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


def _window(entry: Entry) -> Window:
    try:
        return Window.parse(entry.text())
    except WindowInvalid as wrong:
        raise entry.error(str(wrong), f'Write {entry.path}: "22:00-06:00 Europe/Berlin"') from wrong


def _rule(entry: Entry) -> tuple[str, ...] | None:
    if entry.is_empty():
        return None
    entries = entry.mapping(("ignored_columns", "renamed_from", "unlogged_changes"))
    if "ignored_columns" in entries:
        return entries["ignored_columns"].texts()
    return () if entries else None
