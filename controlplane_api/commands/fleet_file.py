"""The files of `menura apply` and `menura sources add`: YAML, read strictly, with the line of whatever is wrong.

Comes in: a file that an operator wrote. Goes out: what the API takes. A source stands there as in an agent's own file,
with `tables` beside its settings; a secret is {file: NAME} or {env: NAME} on the agent's host. Pure, but for the file.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from menura.naming import TableName, is_identity
from menura.views.definition import EVERY, is_view_name

from controlplane_api.commands.tables import parse_table
from controlplane_api.configuration_document import DocumentRefused, text_of
from controlplane_api.errors import FleetInvalid, RequestInvalid
from controlplane_api.states import StartKind

VERSION = 1
#: of mappings and lists in each other, with those around a source's own
MAX_LEVELS = 14
MAX_FILE_BYTES = 16 << 20
STARTS = (StartKind.DUMP, StartKind.OLDEST, StartKind.NOW)
_LIMITS = ("workers", "rows_per_second", "bytes_per_second")
_ROOT_KEYS = ("version", "tenant", "agents", "views")
_SCALARS = ("str", "int", "bool", "null", "float")

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FleetFile:
    #: empty: not named
    tenant: str
    #: of `FleetRequest`
    agents: dict[str, Any]
    #: None: the file says nothing of joined views
    views: dict[str, Any] | None


def read_fleet(file: Path) -> FleetFile:
    """Raises `FleetInvalid`."""
    root = _Node(file, (), _composed(file))
    entries = root.mapping(_ROOT_KEYS)
    if "version" not in entries or entries["version"].value() != VERSION:
        raise (entries.get("version") or root).error("does not say version: 1", "Write version: 1 at its beginning")
    tenant = entries["tenant"].identity() if "tenant" in entries else ""
    if "agents" not in entries:
        raise root.error("lacks agents", "Add agents: {NAME: {sources: {}}}")
    agents = {name: _agent(entry) for name, entry in entries["agents"].named().items()}
    views = (
        {name: _view(name, entry) for name, entry in entries["views"].mapping().items()} if "views" in entries else None
    )
    return FleetFile(tenant, agents, views)


def read_configuration(file: Path) -> dict[str, Any]:
    """Of one source; raises `FleetInvalid`."""
    return _configuration(_Node(file, (), _composed(file)), ())


def _view(name: str, entry: "_Node") -> dict[str, Any]:
    if not is_view_name(name):
        raise entry.error("is not the name of a view", "Use 1 to 63 of a-z, 0-9 and '_', a letter first")
    entries = entry.mapping(("sql", "every", "key"))
    sql = entries["sql"].value() if "sql" in entries else None
    if not isinstance(sql, str):
        raise entry.error("lacks sql", "Add sql: |, and the SELECT below it")
    found: dict[str, Any] = {"sql": sql}
    if "every" in entries:
        found["every"] = entries["every"].value()
        if not isinstance(found["every"], str) or not re.match(EVERY, found["every"]):
            raise entries["every"].error("is no interval", "Write every: 10m, 2h or 1d")
    if "key" in entries:
        found["key"] = entries["key"].value()
        names = found["key"] if isinstance(found["key"], list) else [None]
        if "every" not in entries or not all(isinstance(name, str) for name in names):
            raise entries["key"].error("is no list of columns beside every", "Write key: [id]")
    return found


def _agent(entry: "_Node") -> dict[str, Any]:
    entries = entry.mapping(("sources",))
    if "sources" not in entries:
        raise entry.error("lacks sources", "Add sources: {}, which says that it has none")
    return {"sources": {name: _source(source) for name, source in entries["sources"].named().items()}}


def _source(entry: "_Node") -> dict[str, Any]:
    entries = entry.mapping()
    source = {"configuration": _configuration(entry, ("tables",))}
    if "tables" not in entries:
        return source
    tables: dict[TableName, Any] = {}
    for name, table in entries["tables"].mapping().items():
        database, plain = table.table_name(name)
        if (database, plain) in tables:
            raise table.error("is given twice", "Keep one of them")
        tables[database, plain] = {"database": database, "table": plain, **_start(table)}
    return source | {"tables": list(tables.values())}


def _configuration(entry: "_Node", without: tuple[str, ...]) -> dict[str, Any]:
    document = {key: value.value() for key, value in entry.mapping().items() if key not in without}
    try:
        text_of(document)
    except DocumentRefused as refused:
        raise entry.at(refused.path).error(refused.found, refused.remedy) from None  # its frames have the value
    return document


def _start(entry: "_Node") -> dict[str, Any]:
    if entry.value() is None:
        return {}
    entries = entry.mapping(("start", "dump"))
    found: dict[str, Any] = {}
    if "start" in entries:
        found["start"] = entries["start"].value()
        if found["start"] not in STARTS:
            raise entries["start"].error(f"is not one of {', '.join(STARTS)}", "Write start: dump")
    if "dump" in entries:
        dump = entries["dump"].mapping(("priority", "force", *_LIMITS))
        values = {key: value.value() for key, value in dump.items()}
        for key, value in values.items():
            if not isinstance(value, bool if key == "force" else int) or (key != "force" and isinstance(value, bool)):
                raise dump[key].error("is no whole number" if key != "force" else "is not true or false", "Correct it")
        limits = {key: value for key, value in values.items() if key in _LIMITS}
        found["dump"] = {key: value for key, value in values.items() if key not in _LIMITS} | {"limits": limits}
    return found


def _composed(file: Path) -> yaml.Node:
    doing = f"reading {file}"
    try:
        raw = file.read_bytes()
        if len(raw) > MAX_FILE_BYTES:
            raise FleetInvalid(doing, f"it has more than {MAX_FILE_BYTES} bytes", remedy="Use several files")
        root = yaml.compose(raw.decode(), Loader=yaml.SafeLoader)
    except OSError as broken:
        raise FleetInvalid(doing, broken.strerror or "it can't be read", remedy="Give -f FILE.") from broken
    except UnicodeDecodeError as broken:
        raise FleetInvalid(doing, "it is not UTF-8", remedy="Save it as UTF-8.") from broken
    except yaml.MarkedYAMLError as broken:
        line = f"line {broken.problem_mark.line + 1}: " if broken.problem_mark else ""
        raise FleetInvalid(doing, f"{line}it is not YAML: {broken.problem or broken.context}") from broken
    except (yaml.YAMLError, RecursionError) as broken:
        raise FleetInvalid(doing, "it is not YAML, or nests too deeply") from broken
    if root is None:
        raise FleetInvalid(doing, "it is empty", remedy="Write version: 1 and agents into it.")
    return root


@dataclass(frozen=True, slots=True)
class _Node:
    """A YAML node with its place."""

    file: Path
    path: Path_
    node: yaml.Node

    def error(self, found: str, remedy: str) -> FleetInvalid:
        line = self.node.start_mark.line + 1
        where = ".".join(map(str, self.path)) or "the file"
        return FleetInvalid(
            f"reading {self.file}", f"line {line}: {where} {found}", data="Nothing was changed.", remedy=remedy
        )

    def mapping(self, allowed: tuple[str, ...] | None = None) -> dict[str, "_Node"]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("is not a mapping", "Write it as 'key: value' lines")
        if len(self.path) > MAX_LEVELS:
            raise self.error("nests too deeply", "Take it out")
        entries: dict[str, _Node] = {}
        for key_node, value_node in self.node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            here = _Node(self.file, (*self.path, key), key_node)
            if allowed is not None and key not in allowed:
                raise here.error("is not a known key", f"Use one of {', '.join(allowed)}")
            if key in entries:
                raise here.error("is given twice", "Keep one of them")
            entries[key] = _Node(self.file, here.path, value_node)
        return entries

    def named(self) -> dict[str, "_Node"]:
        """By names of agents or sources."""
        entries = self.mapping()
        for name, entry in entries.items():
            if not is_identity(name):
                raise entry.error("is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_'")
        return entries

    def identity(self) -> str:
        name = self.value()
        if not isinstance(name, str) or not is_identity(name):
            raise self.error("is not a plain name", "Use 1 to 63 of a-z, 0-9, '-' and '_'")
        return name

    def table_name(self, word: str) -> TableName:
        try:
            return parse_table(word)
        except RequestInvalid as wrong:
            raise self.error("is not DATABASE.TABLE", wrong.remedy) from wrong

    def value(self) -> Any:  # noqa: ANN401  (what JSON has)
        """As JSON has it."""
        if isinstance(self.node, yaml.MappingNode):
            return {key: entry.value() for key, entry in self.mapping().items()}
        if isinstance(self.node, yaml.SequenceNode):
            if len(self.path) > MAX_LEVELS:
                raise self.error("nests too deeply", "Take it out")
            items = (_Node(self.file, (*self.path, number), node) for number, node in enumerate(self.node.value))
            return [item.value() for item in items]
        kind = self.node.tag.rpartition(":")[2]
        if kind not in _SCALARS:
            raise self.error("is no text, number, list or mapping", "Put it in quotes")
        if kind == "int" and not re.fullmatch(r"[-+]?[0-9]{1,18}", self.node.value):
            raise self.error("is no plain number", "Write it with digits alone, or in quotes")
        return yaml.SafeLoader("").construct_object(self.node)

    def at(self, path: Path_) -> "_Node":
        """What is at this path below it, or as near to that as there is something."""
        here = self
        for key in path:
            below: dict[str | int, _Node] = {}
            if isinstance(here.node, yaml.MappingNode):
                below.update(here.mapping().items())
            elif isinstance(here.node, yaml.SequenceNode):
                below = {
                    number: _Node(here.file, (*here.path, number), node) for number, node in enumerate(here.node.value)
                }
            if key not in below:
                return _Node(here.file, (*here.path, key), here.node)
            here = below[key]
        return here
