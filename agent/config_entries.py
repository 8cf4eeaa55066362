"""The configuration file's entries, each with its place in the file, and what every kind of source reads of them.

Pure, but for files and variables that an entry names. An entry that is wrong raises a `ConfigError` with file, line,
key and fix. Secrets show as '***'. What an entry may name on this host is its `access`'s.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import yaml
from menura.addresses import is_loopback
from menura.source_configuration import SECRET_REFERENCES

from agent.errors import ConfigAccessRefused, ConfigError
from agent.host_access import OWN, AccessRefused, HostAccess

Value = TypeVar("Value")

#: of a server's `tls`, beside its mode
TLS_FILES = ("ca", "certificate", "key")


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
class Entry:
    """A YAML node, its place in the file and its path of keys."""

    #: or who has sent it, in words
    file: Path | str
    path: str
    #: its marks are None where it was no text of a file
    node: yaml.Node
    access: HostAccess = OWN
    #: of what kind its errors are
    refusal: type[ConfigError] = ConfigError

    def error(self, found: str, remedy: str) -> ConfigError:
        return self.refusal(f"reading the configuration {self.file}", f"{self._where} {found}", remedy=remedy)

    def refused(self, why: AccessRefused) -> ConfigAccessRefused:
        found, remedy = why.args
        doing = f"reading the configuration {self.file}"
        return ConfigAccessRefused(doing, f"{self._where} {found}", data="Nothing was read or dialled", remedy=remedy)

    @property
    def _where(self) -> str:
        mark = self.node.start_mark
        return f"{f'line {mark.line + 1}: ' if mark else ''}{self.path or 'the file'}"

    def is_empty(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"

    def mapping(self, allowed: tuple[str, ...] | None = None) -> dict[str, "Entry"]:
        """Its keys; only the `allowed` ones, or any when None."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("is not a mapping", f"Write {self.path or 'the file'} as 'key: value' lines")
        entries: dict[str, Entry] = {}
        for key_node, value_node in self.node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            entry = replace(self, path=f"{self.path}.{key}" if self.path else key, node=value_node)
            here = replace(entry, node=key_node)
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

    def items(self) -> tuple["Entry", ...]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("is not a list", f"Write {self.path}: [name, name]")
        named = ((f"{self.path}[{i}]", node) for i, node in enumerate(self.node.value))
        return tuple(replace(self, path=path, node=node) for path, node in named)

    def one_of(self, kind: Callable[[str], Value], words: tuple[str, ...]) -> Value:
        word = self.text() if not self.is_empty() else ""
        if word not in words:
            raise self.error(f"is not one of {', '.join(words)}", f"Write {self.path}: {words[0]}")
        return kind(word)

    def required(self, entries: Mapping[str, "Entry"], key: str) -> "Entry":
        if key not in entries or entries[key].is_empty():
            path = f"{self.path}.{key}" if self.path else key
            raise self.error(f"lacks {key}", f"Add {path}: ...")
        return entries[key]


def file_of(entry: Entry) -> bytes:
    """The bytes of the file that the entry names."""
    name = entry.text()
    try:
        return entry.access.read(name)
    except AccessRefused as why:
        raise entry.refused(why) from why
    except OSError as broken:
        raise entry.error(f"names {name}: {broken.strerror}", f"Make {entry.path} name a readable file") from broken


def path_of(entry: Entry) -> str:
    """Of the file that the entry names, for whoever opens it again."""
    try:
        return str(entry.access.path(entry.text()))
    except AccessRefused as why:
        raise entry.refused(why) from why


def host_of(entry: Entry) -> str:
    """The name or address of a server; every kind of source reads those that it dials by this."""
    host = entry.text()
    try:
        entry.access.check_host(host)
    except AccessRefused as why:
        raise entry.refused(why) from why
    return host


def is_this_host(host: str) -> bool:
    """Whether a server is reached without a network: by loopback, or by the folder of its Unix socket.

    >>> is_this_host("127.0.0.1"), is_this_host("/run/db"), is_this_host("db1")
    (True, True, False)
    """
    return host.startswith("/") or is_loopback(host)


def tls_files(entry: Entry, entries: Mapping[str, Entry], mode: str, *, needs_ca: bool) -> tuple[str, str, str]:
    """Of a server's `tls`: CA, certificate and key, empty where there is none; each can be read."""
    for key in TLS_FILES:
        if key in entries:
            file_of(entries[key])
    ca, certificate, key = (path_of(entries[name]) if name in entries else "" for name in TLS_FILES)
    if needs_ca and not ca:
        raise entry.error(
            f"has mode {mode} and no ca", f"Add {entry.path}.ca: FILE, the certificate of the server's CA"
        )
    if bool(certificate) != bool(key):
        raise entry.error("has one of certificate and key", "Give both or none")
    return ca, certificate, key


def address_of(host: str, port: int) -> str:
    """For people.

    >>> address_of("db1", 3306), address_of("::1", 5432)
    ('db1:3306', '[::1]:5432')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def password_of(entry: Entry, entries: Mapping[str, Entry]) -> Secret:
    """Of a server's entries: password, password_file or password_env; none: empty.

    `password` is a text, or names where it is: {file: NAME} or {env: NAME}; what the control plane sends names it.
    """
    given = [key for key in ("password", "password_file", "password_env") if key in entries]
    if len(given) > 1:
        raise entry.error(f"has {' and '.join(given)}", "Keep one of them")
    if not given or entries[given[0]].is_empty():
        return Secret("")
    chosen = entries[given[0]]
    if given[0] == "password_file":
        return _secret_in_file(chosen)
    if given[0] == "password_env":
        return _secret_in_variable(chosen)
    if isinstance(chosen.node, yaml.MappingNode):
        named = chosen.mapping(SECRET_REFERENCES)
        if len(named) != 1:
            raise chosen.error("does not name one place", f"Write {chosen.path}: {{file: NAME}} or {{env: NAME}}")
        return _secret_in_file(named["file"]) if "file" in named else _secret_in_variable(named["env"])
    if entry.access.is_remote:
        raise chosen.error(
            "is a password, and only its place may come from the control plane",
            f"Write {chosen.path}: {{file: NAME}} or {{env: NAME}}",
        )
    node = chosen.node
    return Secret("" if isinstance(node, yaml.ScalarNode) and node.value == "" else chosen.text())


def _secret_in_file(entry: Entry) -> Secret:
    try:
        return Secret(file_of(entry).decode("utf-8").rstrip("\r\n"))
    except UnicodeDecodeError:
        broken = entry.error("names a file that is not UTF-8", "Write the password into it as UTF-8")
    raise broken  # without the decoder's error, which has the file's bytes


def _secret_in_variable(entry: Entry) -> Secret:
    variable = entry.text()
    try:
        value = entry.access.variable(variable)
    except AccessRefused as why:
        raise entry.refused(why) from why
    if value is None:
        raise entry.error(
            f"names the environment variable {variable}, which is not set", f"Set {variable} or use password_file"
        )
    return Secret(value)
