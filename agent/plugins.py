"""Source plugins, by RequestType.

A source kind is a package that registers a factory for each stream it works on; the pipeline knows no
database. A plugin gets its `Context`, checks its server (`preflight`), works while its stream is open, and
stops within seconds when told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from menura.errors import MenuraError
from menura.v1 import stream_pb2

from agent.config import SourceConfig
from agent.runtime.session import Plugin
from agent.runtime.state import SourceState


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin knows of the world."""

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


Factory = Callable[[Context], SourcePlugin]


class Registry:
    """RequestType -> factory."""

    def __init__(self) -> None:
        self._factories: dict[int, Factory] = {}

    def register(self, request_type: stream_pb2.RequestType, factory: Factory) -> None:
        if request_type in self._factories:
            raise ValueError(f"{stream_pb2.RequestType.Name(request_type)} is registered twice")
        self._factories[request_type] = factory

    def make(self, context: Context) -> list[SourcePlugin]:
        """One plugin per registered stream of a source, in the order of registration."""
        return [factory(context) for factory in self._factories.values()]
