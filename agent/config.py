"""The agent's configuration file, read strictly.

Comes in: the YAML file that the database's owner wrote. Goes out: frozen values. An unknown key, a wrong
type or a missing value is one line that names file, line, key and fix. Secrets show as '***'.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from menura.addresses import is_loopback
from menura.change_batch import Compression
from menura.naming import is_identity
from menura.windows import Window, WindowInvalid

from agent.config_entries import Entry, file_of
from agent.errors import ConfigError, ConfigMalformed, ConfigUnreadable, GatewayInsecure
from agent.filter import Filter, Policy
from agent.host_access import RemoteAccess, overlaps
from agent.identity import FILE_NAME, IdentityFile, TlsFiles
from agent.runtime.state_folder import state_folder_of
from agent.settings import AgentConfig, DumpConfig, GatewayConfig, SourceConfig
from agent.source_kind import KindUnknown, SourceKind, default_kind, find_kind, kind_names
from agent.unlogged import UnloggedChanges, UnloggedPolicy

#: of any kind of source; the kind has more
COMMON_KEYS = ("kind", "filter_policy", "filter", "unlogged_changes", "dump")
MOST_WORKERS = 64
_MOST_PER_SECOND = 9_999_999_999
_KEYS = ("tenant", "agent", "gateway", "state_folder", "sources", "remote", "policy")
_REMOTE_KEYS = ("secrets", "variables", "hosts")
#: beside what the agent keeps in its state folder
SECRETS_FOLDER = "secrets"
_GATEWAY_KEYS = ("address", "tls", "identity", "compression")
_TLS_KEYS = ("ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class ToEnrol:
    """What of the configuration an enrolment needs: it comes before the rest of it can be checked."""

    #: empty: not named
    tenant: str
    agent: str
    file: IdentityFile
    sources: tuple[str, ...]
    #: empty: not named
    address: str = ""


def load(path: Path) -> AgentConfig:
    """Read and check the file; raises `ConfigError`, one line, or `IdentityUnusable`."""
    return _agent(_root(path))


def to_enrol(path: Path) -> ToEnrol:
    """Read the names in the file; raises `ConfigError`."""
    root = _root(path)
    entries = root.mapping(_KEYS)
    gateway = root.required(entries, "gateway").mapping(_GATEWAY_KEYS)
    address = gateway["address"].text() if "address" in gateway else ""
    return replace(_to_enrol(root, entries), address=address)


def named(agent: str) -> ToEnrol:
    """The same without a file; the host's name for an agent that is not named."""
    name = agent or _plain_host()
    if not is_identity(name):
        raise ConfigError(
            "naming the agent", f"{name!r} is not a plain name", remedy="Give --agent: 1 to 63 of a-z, 0-9, '-' and '_'"
        )
    return ToEnrol("", name, IdentityFile(state_folder_of("", name, os.environ) / FILE_NAME), ())


def _root(path: Path) -> Entry:
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
    return Entry(path, "", root)


def _agent(root: Entry) -> AgentConfig:
    entries = root.mapping(_KEYS)
    to_enrol = _to_enrol(root, entries)
    gateway = _gateway(root.required(entries, "gateway"), to_enrol.file)
    if isinstance(gateway.tls, IdentityFile):
        tenant, agent = _enrolled(root, entries, gateway.tls)
    else:
        tenant, agent = _identity(root.required(entries, "tenant")), to_enrol.agent
    remote = _remote(entries["remote"], _folder(entries, agent), to_enrol.file) if "remote" in entries else None
    has_sources = "sources" in entries and not entries["sources"].is_empty()
    listed = root if remote and not has_sources else root.required(entries, "sources")
    sources = tuple(read_source(name, entry) for name, entry in listed.mapping().items()) if has_sources else ()
    if not sources and remote is None:
        raise listed.error(
            "is empty",
            "Add a source: 'shop: {client: {host: ..., user: ...}}'; or add remote: {}, so that the control plane may",
        )
    policy = Path(entries["policy"].text()) if "policy" in entries else None
    return AgentConfig(tenant, agent, gateway, sources, _state_folder(entries), remote, policy)


def _folder(entries: Mapping[str, Entry], agent: str) -> Path:
    return state_folder_of(_state_folder(entries), agent, os.environ)


def _remote(entry: Entry, folder: Path, identity: IdentityFile) -> RemoteAccess:
    """What sources of the control plane may reach; empty: secrets in the state folder, and this host."""
    entries = entry.mapping(_REMOTE_KEYS) if not entry.is_empty() else {}
    secrets = Path(entries["secrets"].text()) if "secrets" in entries else folder.absolute() / SECRETS_FOLDER
    if not secrets.is_absolute():
        raise entries["secrets"].error("is no absolute path", "Write the folder's path from / on")
    own = {"its state folder": folder, "its identity": identity.path, "this file": Path(entry.file)}
    given_away = overlaps(secrets, own)
    if given_away:
        raise entry.error(
            f"lets the control plane read {given_away}", "Let secrets name a folder for the sources' secrets alone"
        )
    variables = frozenset(entries["variables"].texts()) if "variables" in entries else frozenset()
    return RemoteAccess(secrets, variables, entries["hosts"].texts() if "hosts" in entries else ())


def _to_enrol(root: Entry, entries: Mapping[str, Entry]) -> ToEnrol:
    agent = _identity(entries["agent"]) if "agent" in entries else _host_identity(root)
    gateway = root.required(entries, "gateway").mapping(_GATEWAY_KEYS)
    named = gateway["identity"].text() if "identity" in gateway else ""
    file = Path(named) if named else state_folder_of(_state_folder(entries), agent, os.environ) / FILE_NAME
    tenant = _identity(entries["tenant"]) if "tenant" in entries else ""
    has_sources = "sources" in entries and not entries["sources"].is_empty()
    sources = entries["sources"].mapping() if has_sources else {}
    return ToEnrol(tenant, agent, IdentityFile(file), tuple(sources))


def _state_folder(entries: Mapping[str, Entry]) -> str:
    return entries["state_folder"].text() if "state_folder" in entries else ""


def _enrolled(root: Entry, entries: Mapping[str, Entry], file: IdentityFile) -> tuple[str, str]:
    """Tenant and agent as its certificate names them; the configuration need not, and must not name others."""
    found = file.load()
    for key, enrolled in (("tenant", found.tenant), ("agent", found.agent)):
        if key in entries and _identity(entries[key]) != enrolled:
            raise entries[key].error(
                f"is not {enrolled}, as which the agent has enrolled in {file.path}", f"Write {key}: {enrolled}"
            )
    return found.tenant, found.agent


def _identity(entry: Entry) -> str:
    name = entry.text()
    if not is_identity(name):
        raise entry.error(
            "is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_', with a letter or digit at both ends"
        )
    return name


def _host_identity(root: Entry) -> str:
    plain = _plain_host()
    if not is_identity(plain):
        raise root.error("lacks agent, and the host's name makes no plain one", "Add agent: NAME")
    return plain


def _plain_host() -> str:
    return re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:63].strip("-")


def _gateway(entry: Entry, enrolled: IdentityFile) -> GatewayConfig:
    entries = entry.mapping(_GATEWAY_KEYS)
    address_entry = entry.required(entries, "address")
    address = address_entry.text()
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise address_entry.error("is not HOST:PORT", 'Write gateway.address: "127.0.0.1:7070"')
    compression = Compression.LZ4
    if "compression" in entries:
        compression = entries["compression"].one_of(Compression, tuple(Compression))
    if "tls" in entries and not entries["tls"].is_empty():
        return GatewayConfig(address, _gateway_tls(entries["tls"]), compression)
    if "identity" in entries or _is_there(enrolled.path, unseen=not is_loopback(host)):
        return GatewayConfig(address, enrolled, compression)
    if not is_loopback(host):
        raise GatewayInsecure(
            f"reading the configuration {entry.file}",
            f"line {address_entry.node.start_mark.line + 1}: gateway.address {address} is not on this host, and"
            f" the agent has not enrolled: there is no {enrolled.path}",
            data="Nothing was sent",
            remedy=f"Run menura agent enrol --config {entry.file} --token TOKEN, with a token of menura token create."
            " For certificates of your own CA add gateway.tls: {ca: FILE, certificate: FILE, key: FILE}",
        )
    return GatewayConfig(address, None, compression)


def _is_there(path: Path, *, unseen: bool) -> bool:
    """`unseen`: the answer where this user may not look; who reads it then says why."""
    try:
        return path.exists()
    except OSError:
        return unseen


def _gateway_tls(entry: Entry) -> TlsFiles:
    entries = entry.mapping(_TLS_KEYS)
    for key in _TLS_KEYS:
        if key in entries:
            file_of(entries[key])  # what can't be read is said at the start; they are read when a connection is made
    if ("certificate" in entries) != ("key" in entries):
        raise entry.error("has one of certificate and key", "Give both or none")
    return TlsFiles(*(Path(entries[key].text()) if key in entries else None for key in _TLS_KEYS))


def read_source(name: str, entry: Entry) -> SourceConfig:
    """A source, whoever has written its entry; raises `ConfigError`."""
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
