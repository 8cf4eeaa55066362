"""The policy's file, read strictly: what is not known, given twice or of a wrong type is an error with its line.

Comes in: a path. Goes out: a `Policy`. The file is its owner's word against every gateway, so nobody but root and the
agent's user may be able to write it, or to put another one in its place.

::

    default: closed                          # or open: what no line names may leave
    requests: [cartography, changes, dumps]  # of any source; and configuration: sources of the control plane
    sources: [shop]                          # of the agent's own file; left out: all, also the control plane's
    databases:
      shop:
        orders: {columns: all}               # also columns that come later
        customers: {columns: [id, city]}
        cards: denied
        "log_*": {columns: all, ignored_columns: [address]}
      hr: denied                             # all its tables; or allowed
"""

import os
import stat
from pathlib import Path

import yaml

from agent.config_entries import Entry
from agent.errors import PolicyUnusable
from agent.veto.policy import NO_POLICY, Pattern, Policy, Request, Rule

DEFAULT_FILE = Path("/etc/menura/policy.yaml")
MAX_FILE_BYTES = 1 << 20
ROOT_USER = 0
#: of one file
MOST_RULES = 10_000
_KEYS = ("default", "requests", "sources", "databases")
_RULE_KEYS = ("columns", "ignored_columns", "sources", "renamed_from")
_ALL = "all"
_ALLOWED, _DENIED = "allowed", "denied"


def read_policy(path: Path | None) -> Policy:
    """`path` None: the default file, and where that is not there, no policy. Raises `PolicyUnusable`."""
    file = path or DEFAULT_FILE
    try:
        text = _text(file)
    except FileNotFoundError as missing:
        if path is None:
            return NO_POLICY
        raise _unusable(file, "there is no such file", f"Write {file}, or name another file") from missing
    except (OSError, UnicodeDecodeError) as broken:
        found = broken.strerror if isinstance(broken, OSError) else "it is not UTF-8"
        raise _unusable(file, f"it can't be read: {found}", f"Let the agent's user read {file}") from broken
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise _unusable(file, f"{where}this is not YAML", "Correct that line") from broken
    except RecursionError as deep:
        raise _unusable(file, "its lists are nested too deeply", "Write it as docs/policy.md shows") from deep
    if root is None:
        raise _unusable(file, "it is empty", "Write default: closed, or default: open, into it")
    return _policy(Entry(file, "", root, refusal=PolicyUnusable))


def _text(file: Path) -> str:
    """Of a file that nobody else may write."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise _unusable(file, "it is no file", f"Make {file} a file")
        _check_owner(file, facts)
        _check_owner(file.resolve().parent, file.resolve().parent.stat())
        content = opened.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise _unusable(file, f"it has more than {MAX_FILE_BYTES} bytes", "Name tables by patterns with *")
    return content.decode("utf-8")


def _check_owner(path: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (ROOT_USER, os.geteuid()):
        raise _unusable(
            path, f"{path} belongs to user {facts.st_uid}, neither to root nor to the agent's", f"chown root {path}"
        )
    is_sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
        raise _unusable(path, f"others than its owner may write {path}", f"chmod go-w {path}")


def _policy(root: Entry) -> Policy:
    entries = root.mapping(_KEYS)
    is_open = root.required(entries, "default").one_of(str, ("closed", "open")) == "open"
    requests = frozenset(Request)
    if "requests" in entries:
        requests = frozenset(item.one_of(Request, tuple(Request)) for item in entries["requests"].items())
    sources = entries["sources"].texts() if "sources" in entries else None
    rules: list[Rule] = []
    listed = entries.get("databases")
    for database, entry in ({} if listed is None or listed.is_empty() else listed.mapping()).items():
        rules += _database(database, entry, is_open=is_open)
    if len(rules) > MOST_RULES:
        raise root.error(f"has more than {MOST_RULES} entries", "Name tables by patterns with *")
    return Policy(
        str(root.file),
        is_open,
        requests,
        _line(entries["requests"]) if "requests" in entries else 0,
        sources,
        _line(entries["sources"]) if "sources" in entries else 0,
        tuple(rules),
    )


def _database(name: str, entry: Entry, *, is_open: bool) -> list[Rule]:
    if isinstance(entry.node, yaml.ScalarNode):
        word = entry.one_of(str, (_ALLOWED, _DENIED))
        return [Rule(_line(entry), Pattern(_named(name, entry)), Pattern("*"), leaves=word == _ALLOWED)]
    return [
        _rule(_named(name, entry), _named(table, of_table), of_table, is_open=is_open)
        for table, of_table in entry.mapping().items()
    ]


def _named(name: str, entry: Entry) -> str:
    if not name:
        raise entry.error("has no name", "Write a name before the colon")
    return name


def _rule(database: str, table: str, entry: Entry, *, is_open: bool) -> Rule:
    line, names = _line(entry), (Pattern(database), Pattern(table))
    if isinstance(entry.node, yaml.ScalarNode):
        return Rule(line, *names, leaves=entry.one_of(str, (_ALLOWED, _DENIED)) == _ALLOWED)
    entries = entry.mapping(_RULE_KEYS)
    if not is_open and "columns" not in entries:
        raise entry.error(
            "does not say its columns", f"Write {entry.path}: {{columns: [name, name]}}, or {{columns: all}}"
        )
    only: tuple[str, ...] | None = None
    if "columns" in entries and not _is_all(entries["columns"]):
        only = entries["columns"].texts()
    lists = {key: entries[key].texts() if key in entries else () for key in _RULE_KEYS[1:]}
    return Rule(line, *names, True, only, lists["ignored_columns"], lists["sources"], lists["renamed_from"])


def _is_all(entry: Entry) -> bool:
    return isinstance(entry.node, yaml.ScalarNode) and entry.one_of(str, (_ALL,)) == _ALL


def _line(entry: Entry) -> int:
    return int(entry.node.start_mark.line) + 1


def _unusable(path: Path, found: str, remedy: str) -> PolicyUnusable:
    return PolicyUnusable(
        f"reading the policy {path}", found, data="Nothing leaves that did not leave before", remedy=remedy
    )
