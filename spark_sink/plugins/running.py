"""Plug-ins as consumers that follow a lake (`spark_sink.export.following`), each at a position of its own.

Comes in: plug-ins in order, each with its tables. Goes out: their calls. In turn each gets the step that is next for
it; behind the step its position is durable: in a folder of its own, with the class that it is of, or by a
`TransactionalPlugin` beside its data. One whose calls take long holds up those behind it in the same thread.
"""

import json
import threading
from pathlib import Path

from spark_sink.export.feed import Step
from spark_sink.export.outputs import FolderOutput, Form
from spark_sink.export.position import Position, read_position
from spark_sink.plugins.delivery import Delivery
from spark_sink.plugins.plugin import Plugin, TransactionalPlugin


class Keeps:
    """A plug-in's position: in a folder, which this run alone has from here on, or in the plug-in itself."""

    def __init__(self, delivery: Delivery, folder: Path) -> None:
        """Raises `SinkError`."""
        self._delivery = delivery
        kind = type(delivery.plugin)
        self._folder = FolderOutput(folder, Form(), owner=f"{kind.__module__}:{kind.__qualname__}")
        self._held = self._folder.position()

    def read(self) -> Position | None:
        """None: nothing was told yet. Raises `PluginFailed`, `ExportPositionInvalid`."""
        plugin = self._delivery.plugin
        if not isinstance(plugin, TransactionalPlugin):
            return self._held
        with self._delivery.calling("position"):
            text = plugin.position()
        return None if text is None else read_position(text, f"plug-in {self._delivery.name}")

    def write(self, position: Position) -> None:
        """Raises `SinkError`."""
        if not isinstance(self._delivery.plugin, TransactionalPlugin):
            self._folder.write(Step((), position))
            self._held = position

    def close(self) -> None:
        """Lets go of the folder."""
        self._folder.close()


class PluginConsumer:
    def __init__(self, name: str, plugin: Plugin, folder: Path) -> None:
        """Raises `SinkError`."""
        self.delivery = Delivery(name, plugin)
        self._keeps = Keeps(self.delivery, folder)

    @property
    def name(self) -> str:
        return f"plug-in {self.delivery.name}"

    def position(self) -> Position | None:
        return self._keeps.read()

    def take(self, step: Step, stop: threading.Event) -> bool:
        if not self.delivery.deliver(step, stop):
            return False
        self.delivery.checkpoint(json.dumps(step.position.document()))
        self._keeps.write(step.position)
        return True

    def close(self) -> None:
        """Lets go of the folder too. Raises `PluginFailed`."""
        try:
            self.delivery.close()
        finally:
            self._keeps.close()
