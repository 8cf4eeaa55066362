"""What a pipe writes to, made from its configuration: a consumer that follows the lake.

Comes in: a pipe's configuration, the folder that keeps its position. Goes out: a consumer. The folder is this run's
from here on. Durable: of files and Kafka the position stands with what was written, of standard output in the folder,
of a class as `spark_sink.plugins.running` says. In the folder it stands with the producer, and another one is refused.
After a failure an output is made anew, with its secrets as they are then, and asked for its position.

A class has a name in the group of entry points `menura.producers`, which other packages may add to, or is MODULE:CLASS.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from spark_sink.errors import SinkSettingInvalid
from spark_sink.export.avro_files import AvroEntries
from spark_sink.export.feed import Step
from spark_sink.export.following import Consumer
from spark_sink.export.outputs import (
    POSITION_FILE,
    FolderOutput,
    Form,
    JsonEntries,
    Output,
    ReaderGone,
    StreamOutput,
    standard_output,
)
from spark_sink.export.position import Position
from spark_sink.export.registry import Registry
from spark_sink.pipes.configuration import FILES, KAFKA, STDOUT, PipeConfig, PipeFormat, invalid
from spark_sink.plugins.configuration import PluginConfig, load
from spark_sink.plugins.running import PluginConsumer
from spark_sink.plugins.secrets import SecretMissing, resolved

GROUP = "menura.producers"
#: whose names nobody else takes
OWN = "menura"


class OutputConsumer:
    """An output of messages."""

    def __init__(self, name: str, producer: str, folder: Path, make: Callable[[], Output]) -> None:
        """Raises `SinkError`."""
        self._name = name
        self._make = make
        self._folder = FolderOutput(folder, Form(), owner=producer)
        self._folder.position()  # which takes it, and refuses another producer's
        self._output = make()
        self._is_new = True

    @property
    def name(self) -> str:
        return f"pipe {self._name}"

    def position(self) -> Position | None:
        if not self._is_new:
            self._let_go()
            self._output = self._make()
        self._is_new = False
        return self._output.position()

    def take(self, step: Step, stop: threading.Event) -> bool:
        try:
            self._output.write(step)
        except ReaderGone:  # else Python writes what is left there at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
        return True

    def close(self) -> None:
        self._let_go()
        self._folder.close()

    def _let_go(self) -> None:
        if isinstance(self._output, FolderOutput):
            self._output.close()


class PipePlugin(PluginConsumer):
    @property
    def name(self) -> str:
        return f"pipe {self.delivery.name}"


def consumer_of(config: PipeConfig, folder: Path) -> Consumer:
    """Raises `SinkError`; what is wrong with the pipe's options is said here, and what its target answers later."""
    if config.messages is None:
        return _plugin(config, folder)
    makes = {STDOUT: _standard_output, FILES: _files, KAFKA: _kafka}
    make = makes[config.producer]
    return OutputConsumer(config.name, config.producer, folder, lambda: make(config, folder))


def _standard_output(config: PipeConfig, folder: Path) -> Output:
    assert config.messages is not None
    return StreamOutput(standard_output(), config.messages.form, folder / POSITION_FILE, config.producer)


def _files(config: PipeConfig, _folder: Path) -> Output:
    assert config.messages is not None
    entries = AvroEntries if config.messages.format == PipeFormat.AVRO else JsonEntries
    return FolderOutput(Path(config.options["folder"]), config.messages.form, entries)


def _kafka(config: PipeConfig, _folder: Path) -> Output:
    assert config.messages is not None
    try:
        from spark_sink.export.kafka import KafkaOutput  # noqa: PLC0415  (only who has the package)
    except ModuleNotFoundError as missing:
        raise invalid(
            f"pipe {config.name}: the package {missing.name} is not installed", remedy="Install menura[kafka]"
        ) from missing
    options, settings = _resolved(config, config.options), _resolved(config, config.settings)
    registry = None
    if "registry" in options:
        credentials, authority = options.get("registry_credentials"), options.get("registry_ca")
        registry = Registry(
            options["registry"], Path(credentials) if credentials else None, Path(authority) if authority else None
        )
    return KafkaOutput(options["brokers"], config.name, config.messages.form, settings, registry)


def _plugin(config: PipeConfig, folder: Path) -> Consumer:
    names = (config.name, _class_name(config.producer, config.name), (), config.begin, config.on_error)
    return PipePlugin(config.name, load(PluginConfig(*names, config.options), of_pipe=True), folder)


def _class_name(producer: str, pipe: str) -> str:
    """MODULE:CLASS. Raises `SinkSettingInvalid`."""
    if ":" in producer:
        return producer
    found: dict[str, str] = {}
    for each in sorted(entry_points(group=GROUP), key=lambda entry: entry.dist is not None and entry.dist.name == OWN):
        found[each.name] = each.value
    if producer not in found:
        names = ", ".join([STDOUT, FILES, KAFKA, *sorted(found)])
        raise invalid(
            f"pipe {pipe}: there is no producer {producer!r}; there are {names}, and MODULE:CLASS",
            remedy=f"Correct the name, or install the package that has it as an entry point of the group {GROUP}",
        )
    return found[producer]


def _resolved(config: PipeConfig, values: Mapping[str, str]) -> dict[str, str]:
    """Raises `SinkSettingInvalid`."""
    try:
        return {name: resolved(value) for name, value in values.items()}
    except SecretMissing as missing:
        raise SinkSettingInvalid(
            f"reading what pipe {config.name} refers to",
            str(missing),
            data="Nothing more of this pipe is written",
            remedy="Set it, or let it be read; the file names it by env:NAME or file:PATH",
        ) from missing
