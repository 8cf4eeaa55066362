"""Kinds of sources: what a package has to bring so that the agent can read one more kind.

A kind is an object that a package registers as an entry point of the group `menura.sources`, under the name that
`sources.NAME.kind` in the configuration says; no module of the agent names one. It reads its own entries of the
configuration, and opens a source: one plugin for each stream to the gateway. A plugin checks its server (`preflight`),
works while its stream is open, and stops within seconds when told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from menura.distributions import entry_points
from menura.errors import MenuraError

from agent.config_entries import Entry
from agent.filter import Identifiers
from agent.runtime.session import Plugin
from agent.runtime.state import SourceState
from agent.settings import SourceConfig

GROUP = "menura.sources"
#: its one entry point has the name of the kind that a source is of whose configuration names none
DEFAULT_GROUP = "menura.default_source"


@dataclass(frozen=True, slots=True)
class Context:
    """What a source knows of the world."""

    tenant: str
    agent: str
    source: SourceConfig
    state: SourceState
    #: for files that are made again when they are lost; may not be there yet
    state_folder: Path


class SourcePlugin(Plugin, Protocol):
    @property
    def findings(self) -> tuple[MenuraError, ...]:
        """What the preflight found that stops no source."""

    def preflight(self) -> str:
        """Check the server; one line that says what was found. Raises an `AgentError`."""

    def stop(self) -> None:
        """End the plugin's threads; returns once they have ended, within seconds."""


class SourceKind(Protocol):
    """What the entry point names: a module will do."""

    @property
    def config_keys(self) -> tuple[str, ...]:
        """Its own keys of a source's entries."""

    @property
    def identifiers(self) -> Identifiers:
        """What the filter has to know of its names."""

    def configure(self, common: SourceConfig, entry: Entry, entries: Mapping[str, Entry]) -> SourceConfig:
        """The source with its own entries; raises `ConfigError`."""

    def make_plugins(self, context: Context) -> Sequence[SourcePlugin]:
        """One plugin for each stream; `context.source` is of `configure`. No server is asked yet."""


class KindUnknown(LookupError):
    """Nobody, or more than one package, brings a kind of that name, or it can't be loaded; says which."""


def kind_names() -> list[str]:
    """Of all that are installed."""
    return sorted({point.name for point in entry_points(GROUP)})


def default_kind() -> str | None:
    """None: the configuration has to name one."""
    return next((point.name for point in entry_points(DEFAULT_GROUP)), None)


@cache
def find_kind(name: str) -> SourceKind:
    """Raises `KindUnknown`."""
    found = entry_points(GROUP, name)
    if not found:
        raise KindUnknown("no installed package brings it")
    if len(found) > 1:
        packages = ", ".join(sorted(f"{point.value}" for point in found))
        raise KindUnknown(f"more than one package brings it ({packages})")
    try:
        kind: SourceKind = found[0].load()
    except (ImportError, AttributeError) as broken:
        raise KindUnknown(f"{found[0].value} can't be loaded: {broken}") from broken
    return kind
