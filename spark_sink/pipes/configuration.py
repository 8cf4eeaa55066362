"""The file of `menura export --file`: which pipes there are, in TOML.

::

    lake = "/lake/tables"
    positions = "/var/lib/menura/pipes"       # a folder; of each pipe one below it

    [[pipe]]
    name = "to-kafka"
    tables = ["acme/shop/shop/order*"]        # TENANT/SOURCE[/DATABASE[/TABLE]]; * is any text in the last two
    without = ["acme/shop/shop/*_old"]
    from = "state"                            # or beginning (of the changelog; the default), newest, a cut's number
    on_error = "retry"                        # or stop
    producer = "kafka"                        # or stdout, files, the name of a class, MODULE:CLASS
    format = "avro"                           # or json (the default), schema (JSON with Kafka Connect's schemas)
    options = { brokers = "broker:9092", registry = "https://registry:8081" }

Comes in: the file. Goes out: values that fit each other; what is wrong is an error with its place, and nothing runs.
Secrets are references (`spark_sink.plugins.secrets`), which are kept here as they stand.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from menura.naming import is_identity

from spark_sink.errors import SinkSettingInvalid
from spark_sink.export.envelope import OPERATIONS
from spark_sink.export.fields import Decimals, UnsignedBigints
from spark_sink.export.following import BEGINNINGS, OnError
from spark_sink.export.kafka_settings import refused
from spark_sink.export.outputs import Form
from spark_sink.pipes.selection import Selection, read_selection
from spark_sink.pipes.targets import shared
from spark_sink.plugins.secrets import wants_reference

MAX_BYTES = 1 << 20
#: each has a thread
MOST_PIPES = 64
_KEYS = {"lake", "positions", "pipe"}
_PIPE_KEYS = {"name", "tables", "without", "from", "on_error", "producer", "format", "messages", "options"}
_MESSAGE_KEYS = {"keys", "tombstones", "skipped_operations", "decimals", "unsigned_bigints"}
#: of producers that write messages; a class says its own
_OPTIONS = {
    "stdout": frozenset[str](),
    "files": frozenset({"folder"}),
    "kafka": frozenset({"brokers", "registry", "registry_credentials", "registry_ca", "settings"}),
}
STDOUT, FILES, KAFKA = _OPTIONS
_NEEDED = {FILES: "folder", KAFKA: "brokers"}

_Word = TypeVar("_Word", bound=StrEnum)


class PipeFormat(StrEnum):
    JSON = "json"
    #: each message with its Kafka Connect schema
    SCHEMA = "schema"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class Messages:
    """How changes are written, by producers that write messages."""

    format: PipeFormat = PipeFormat.JSON
    form: Form = field(default_factory=Form)
    decimals: Decimals = Decimals.PRECISE
    bigints: UnsignedBigints = UnsignedBigints.LONG


@dataclass(frozen=True, slots=True)
class PipeConfig:
    name: str
    selection: Selection
    #: one of `BEGINNINGS`, or a cut's number
    begin: str
    on_error: OnError
    #: of `stdout`, `files`, `kafka`, or a class: a name of the group of entry points, or MODULE:CLASS
    producer: str
    #: None: the producer is a class, which is given rows
    messages: Messages | None
    #: texts; of Kafka also `settings`, librdkafka's. Secrets are references
    options: Mapping[str, str]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PipesConfig:
    lake: str
    positions: Path
    pipes: tuple[PipeConfig, ...]


class _Wrong(Exception):
    """Where in the file, and what."""


def read_config(file: Path) -> PipesConfig:
    """Raises `SinkSettingInvalid`."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1)
        return _config(_parsed(text))
    except OSError as failure:
        raise invalid(f"{file}: {failure.strerror or type(failure).__name__}") from failure
    except (_Wrong, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise invalid(f"{file}: {wrong}") from wrong


def _parsed(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise _Wrong(f"it is larger than {MAX_BYTES} bytes")
    return tomllib.loads(text.decode())


def invalid(found: str, remedy: str = "Correct the file; the page on exports shows one") -> SinkSettingInvalid:
    return SinkSettingInvalid("reading the pipes' file", found, data="No pipe was begun", remedy=remedy)


def _config(found: dict[str, Any]) -> PipesConfig:
    _check_keys(found, _KEYS, "the file")
    entries = found.get("pipe")
    if not isinstance(entries, list) or not entries:
        raise _Wrong("it names no pipe: [[pipe]]")
    if len(entries) > MOST_PIPES:
        raise _Wrong(f"it names {len(entries)} pipes, and one command runs at most {MOST_PIPES}: divide the file")
    pipes = tuple(_pipe(entry, number) for number, entry in enumerate(entries, 1))
    _check_each_once([each.name for each in pipes], "pipes have the name")
    _check_each_once([STDOUT for each in pipes if each.producer == STDOUT], "pipes have the producer")
    folders = [str(Path(each.options["folder"]).absolute()) for each in pipes if each.producer == FILES]
    _check_each_once(folders, "pipes have the folder")
    if both := shared(pipes):
        raise _Wrong(both)
    return PipesConfig(_text(found, "lake", "the file"), Path(_text(found, "positions", "the file")), pipes)


def _pipe(entry: object, number: int) -> PipeConfig:
    at = f"pipe {number}"
    if not isinstance(entry, dict):
        raise _Wrong(f"{at} is no table: [[pipe]]")
    name = _text(entry, "name", at)
    if not is_identity(name):
        raise _Wrong(f"{at}: the name {name!r}: use 1 to 63 of a-z, 0-9, '-' and '_'")
    at = f"pipe {name}"
    _check_keys(entry, _PIPE_KEYS, at)
    producer = _text(entry, "producer", at)
    options, settings = _options(entry.get("options", {}), producer, at)
    messages = _messages(entry, producer, options, at)
    return PipeConfig(
        name,
        _selection(entry, at),
        _begin(entry.get("from", BEGINNINGS[0]), at),
        _word(OnError, entry.get("on_error", OnError.RETRY), f"{at}: on_error"),
        producer,
        messages,
        options,
        settings,
    )


def _selection(entry: Mapping[str, Any], at: str) -> Selection:
    words = _texts(entry.get("tables"), f"{at}: tables")
    if not words:
        raise _Wrong(f"{at}: tables names none")
    without = _texts(entry.get("without", []), f"{at}: without")
    try:
        return read_selection(words, without)
    except ValueError as wrong:
        raise _Wrong(f"{at}: tables and without: {wrong}") from wrong


def _begin(found: object, at: str) -> str:
    is_cut = type(found) is int and found > 0
    if not is_cut and found not in BEGINNINGS:
        raise _Wrong(f"{at}: from is {found!r}; use {', '.join(BEGINNINGS)}, or the number of a cut")
    return str(found)


def _messages(entry: Mapping[str, Any], producer: str, options: Mapping[str, str], at: str) -> Messages | None:
    if producer not in _OPTIONS:
        if found := sorted({"format", "messages"} & set(entry)):
            raise _Wrong(f"{at}: {', '.join(found)}: the producer {producer} is given rows, and writes no messages")
        return None
    format_ = _word(PipeFormat, entry.get("format", PipeFormat.JSON), f"{at}: format")
    if format_ == PipeFormat.AVRO and producer == STDOUT:
        raise _Wrong(f"{at}: format avro to stdout, which has one stream for all tables; one in Avro has one schema")
    if producer == KAFKA and (format_ == PipeFormat.AVRO) != ("registry" in options):
        raise _Wrong(f"{at}: to Kafka format avro wants options.registry, and the other formats none")
    found = entry.get("messages", {})
    if not isinstance(found, dict):
        raise _Wrong(f"{at}: messages is no table")
    _check_keys(found, _MESSAGE_KEYS, f"{at}: messages")
    if producer == KAFKA and "keys" in found:
        raise _Wrong(f"{at}: messages.keys: Kafka's messages always have their keys")
    form = Form(
        _truth(found, "keys", default=False, at=at),
        format_ == PipeFormat.SCHEMA,
        _truth(found, "tombstones", default=True, at=at),
        _operations(found.get("skipped_operations", ""), at),
    )
    return Messages(
        format_,
        form,
        _word(Decimals, found.get("decimals", Decimals.PRECISE), f"{at}: messages.decimals"),
        _word(UnsignedBigints, found.get("unsigned_bigints", UnsignedBigints.LONG), f"{at}: messages.unsigned_bigints"),
    )


def _options(found: object, producer: str, at: str) -> tuple[dict[str, str], dict[str, str]]:
    if not isinstance(found, dict):
        raise _Wrong(f"{at}: options is no table")
    known = _OPTIONS.get(producer)
    if known is not None:
        _check_keys(found, known, f"{at}: options")
    settings = found.get("settings", {}) if producer == KAFKA else {}
    if not isinstance(settings, dict):
        raise _Wrong(f"{at}: options.settings is no table")
    if own := refused(settings):
        raise _Wrong(f"{at}: options.settings: {', '.join(own)}: the pipe sets this itself, as its promise rests on it")
    options = {name: value for name, value in found.items() if producer != KAFKA or name != "settings"}
    for place, values in (("options", options), ("options.settings", settings)):
        for name, value in values.items():
            _check_option(f"{at}: {place}.{name}", name, value)
    needed = _NEEDED.get(producer)
    if needed is not None and not options.get(needed):
        raise _Wrong(f"{at}: options.{needed} is missing")
    return options, settings


def _check_option(place: str, name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _Wrong(f"{place} is no text; write numbers in quotes too")
    if wants_reference(name, value):
        raise _Wrong(f"{place} holds a secret: name where it is instead, env:NAME or file:PATH")


def _operations(found: object, at: str) -> frozenset[str]:
    if not isinstance(found, str) or set(found) - set(OPERATIONS):
        raise _Wrong(f"{at}: messages.skipped_operations is no text of {', '.join(OPERATIONS)}")
    return frozenset(found)


def _check_keys(found: Mapping[str, Any], known: Collection[str], at: str) -> None:
    if unknown := sorted(set(found) - set(known)):
        have = f"known are {', '.join(sorted(known))}" if known else "there are none"
        raise _Wrong(f"{at}: {', '.join(map(repr, unknown))}: unknown; {have}")


def _check_each_once(words: Collection[str], what: str) -> None:
    for word in words:
        if list(words).count(word) > 1:
            raise _Wrong(f"two {what} {word}")


def _word(kind: type[_Word], found: object, place: str) -> _Word:
    words = [each.value for each in kind]
    if found not in words:
        raise _Wrong(f"{place} is {found!r}; use {', '.join(words)}")
    return kind(str(found))


def _truth(found: Mapping[str, Any], name: str, *, default: bool, at: str) -> bool:
    value = found.get(name, default)
    if not isinstance(value, bool):
        raise _Wrong(f"{at}: messages.{name} is neither true nor false")
    return value


def _texts(found: object, place: str) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise _Wrong(f"{place} is no list of texts")
    return found


def _text(found: Mapping[str, Any], key: str, at: str) -> str:
    if key not in found:
        raise _Wrong(f"{at}: {key} is missing")
    value = found[key]
    if not isinstance(value, str) or not value:
        raise _Wrong(f"{at}: {key} is no text")
    return value
