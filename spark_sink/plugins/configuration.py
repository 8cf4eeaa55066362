"""The file of `menura plugin run`: which plug-ins there are, in order, in TOML.

::

    lake = "/lake/tables"
    positions = "/var/lib/menura/plugins"   # a folder; of each plug-in one below it

    [[plugin]]
    name = "cache"
    class = "spark_sink.plugins.row_cache:RowCache"
    tables = ["acme/shop/shop"]             # as `menura export` takes them
    from = "state"                          # or beginning (of the changelog; the default), newest
    on_error = "retry"                      # or stop
    options = { file = "/var/cache/rows.sqlite" }
"""

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from menura.naming import is_identity

from spark_sink.errors import PluginInvalid
from spark_sink.export.following import BEGINNINGS, OnError
from spark_sink.plugins.delivery import OWN_FILES, where_raised
from spark_sink.plugins.plugin import Plugin, PluginError
from spark_sink.plugins.secrets import SecretMissing, resolved

MAX_BYTES = 1 << 20
_KEYS = {"lake", "positions", "plugin"}
_PLUGIN_KEYS = {"name", "class", "tables", "from", "on_error", "options"}


@dataclass(frozen=True, slots=True)
class PluginConfig:
    name: str
    #: MODULE:CLASS
    class_name: str
    tables: tuple[str, ...]
    begin: str
    on_error: OnError
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PluginsConfig:
    lake: str
    positions: Path
    plugins: tuple[PluginConfig, ...]


def read_config(file: Path) -> PluginsConfig:
    """Raises `PluginInvalid`."""
    try:
        with file.open("rb") as opened:
            found = tomllib.loads(opened.read(MAX_BYTES).decode())
        return _config(found)
    except OSError as failure:
        raise _invalid(f"{file}: {failure.strerror or type(failure).__name__}") from failure
    except (ValueError, KeyError, TypeError) as wrong:  # also what is no TOML
        reason = f"{wrong.args[0]} is missing" if isinstance(wrong, KeyError) else str(wrong)
        raise _invalid(f"{file}: {reason}") from wrong


def load(config: PluginConfig, *, of_pipe: bool = False) -> Plugin:
    """`of_pipe`: of a file of pipes, where values of options may say where they are (`spark_sink.plugins.secrets`).

    Shows of what a class raises no text, which may have a secret in it, but of `PluginError`. Raises `PluginInvalid`.
    """
    module, _, name = config.class_name.partition(":")
    options = {"name": config.name} | dict(config.options)
    refuse, kind = (_invalid_pipe, "pipe") if of_pipe else (_invalid, "plug-in")
    at = f"{kind} {config.name}: {config.class_name}"
    try:
        found = getattr(importlib.import_module(module), name)
        if of_pipe and not getattr(found, "reads_references", False):
            options = {option: resolved(value) for option, value in options.items()}
        made = found(options)
    except (PluginError, SecretMissing) as wrong:
        raise refuse(f"{at}: {wrong}", remedy="Correct the options in the file, or what they refer to") from wrong
    except Exception as failure:
        missing = f": there is no module {failure.name}" if isinstance(failure, ModuleNotFoundError) else ""
        raise refuse(
            f"{at}: {where_raised('making it', failure, (*OWN_FILES, __file__, str(importlib.__file__)))}{missing}",
            remedy="Install the module that has the class beside Menura, and give the class the options that it wants",
        ) from failure
    if not isinstance(made, Plugin):
        raise refuse(f"{at} is no subclass of spark_sink.plugins.plugin.Plugin")
    return made


def _config(found: dict[str, Any]) -> PluginsConfig:
    _checked(found, _KEYS)
    tables = found["plugin"]
    if not isinstance(tables, list) or not tables:
        raise ValueError("it names no plug-in: [[plugin]]")
    plugins = tuple(map(_plugin, tables))
    names = [each.name for each in plugins]
    if len(set(names)) < len(names):
        raise ValueError("two plug-ins have one name")
    return PluginsConfig(_text(found, "lake"), Path(_text(found, "positions")), plugins)


def _plugin(entry: object) -> PluginConfig:
    found = _checked(entry, _PLUGIN_KEYS)
    name, class_name = _text(found, "name"), _text(found, "class")
    if not is_identity(name):
        raise ValueError(f"the name {name!r}: use 1 to 63 of a-z, 0-9, '-' and '_'")
    if not all(class_name.partition(":")):
        raise ValueError(f"the class {class_name!r} is not MODULE:CLASS")
    tables, options = found["tables"], found.get("options", {})
    if not isinstance(tables, list) or not tables or not all(isinstance(word, str) for word in tables):
        raise ValueError(f"tables of {name} is no list of texts")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise ValueError(f"options of {name} are not texts")
    begin = found.get("from", BEGINNINGS[0])
    if begin not in BEGINNINGS:
        raise ValueError(f"from of {name} is {begin!r}; use {', '.join(BEGINNINGS)}")
    return PluginConfig(name, class_name, tuple(tables), begin, OnError(found.get("on_error", OnError.RETRY)), options)


def _checked(found: object, known: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("a plug-in is no table: [[plugin]]")
    if unknown := set(found) - known:
        raise ValueError(f"{', '.join(sorted(unknown))}: unknown; known are {', '.join(sorted(known))}")
    return found


def _text(found: dict[str, Any], key: str) -> str:
    if not isinstance(found[key], str) or not found[key]:
        raise TypeError(f"{key} is no text")
    return str(found[key])


def _invalid(problem: str, remedy: str = "Correct the file; the documentation of plug-ins shows one") -> PluginInvalid:
    return PluginInvalid("reading the plug-ins' file", problem, data="No plug-in was called", remedy=remedy)


def _invalid_pipe(problem: str, remedy: str = "Correct the file; the page on exports shows one") -> PluginInvalid:
    return PluginInvalid("reading the pipes' file", problem, data="No pipe was begun", remedy=remedy)
