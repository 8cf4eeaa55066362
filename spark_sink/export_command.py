"""`menura export TABLE...`: changes of the lake's tables as messages of Debezium's form, without Spark.

Comes in: the lake's address, tables, and from where: nothing (what the output's position says, or the beginning), the
beginning, the rows as they are, the newest cut, or a cut. Goes out: JSON lines, to a folder (each change once) or to
standard output (each change at least once), or to Kafka (each once, by transactions); or Avro, to a folder as object
container files, to Kafka with a schema registry. Nothing of the lake is changed.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial

import pyarrow as pa
from deltalake.exceptions import DeltaError
from menura.naming import is_identity
from menura.signals import set_at_signal
from menura.stores.address import absolute
from menura.stores.reasons import reason_of

from spark_sink.errors import (
    ExportSchemaRefused,
    ExportValueRefused,
    LakeStorageFailed,
    SinkError,
    SinkSettingInvalid,
    TableNotInLake,
)
from spark_sink.export.avro_files import AvroEntries
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import Decimals, UnsignedBigints, avro_field_of, field_of
from spark_sink.export.outputs import FolderOutput, Form, JsonEntries, Output, StreamOutput, Writes, standard_output
from spark_sink.export.position import BEGINNING, Position
from spark_sink.export.registry import Registry
from spark_sink.export_arguments import FROM_BEGINNING, FROM_NEWEST, FROM_STATE, Format, check_format, parser
from spark_sink.lake.records import Records
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.reading import list_tables
from spark_sink.work import TableId


def main() -> int:
    arguments = parser().parse_args()
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        use_options(arguments.storage_option)
        return _export(arguments, _output(arguments), stop)
    except SinkError as failure:
        print(f"menura export: {failure}", file=sys.stderr)
        return failure.exit_code
    except BrokenPipeError:  # who read the lines has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _output(arguments: argparse.Namespace) -> Output:
    form = Form(
        arguments.with_keys, arguments.schema, not arguments.no_tombstones, frozenset(arguments.skipped_operations)
    )
    if arguments.position is not None and (arguments.output or arguments.kafka):
        raise SinkSettingInvalid(
            "reading the arguments",
            "--position with --output or --kafka",
            remedy="Those keep their positions themselves",
        )
    check_format(arguments)
    if arguments.kafka is not None:
        return _kafka_output(arguments, form)
    if arguments.output is not None:
        return FolderOutput(arguments.output, form, AvroEntries if arguments.format == Format.AVRO else JsonEntries)
    return StreamOutput(standard_output(), form, arguments.position)


def _kafka_output(arguments: argparse.Namespace, form: Form) -> Output:
    if not is_identity(arguments.name):
        raise SinkSettingInvalid(
            "reading the arguments", f"--name {arguments.name!r}", remedy="Use 1 to 63 of a-z, 0-9, '-' and '_'"
        )
    try:
        from spark_sink.export.kafka import KafkaOutput  # noqa: PLC0415  (only who has the package)
    except ModuleNotFoundError as missing:
        raise SinkSettingInvalid(
            "reading the arguments", f"the package {missing.name} is not installed", remedy="Install menura[kafka]"
        ) from missing
    registry = None
    if arguments.registry:
        registry = Registry(arguments.registry, arguments.registry_credentials, arguments.registry_ca)
    return KafkaOutput(arguments.kafka, arguments.name, form, dict(arguments.kafka_option), registry)


def _export(arguments: argparse.Namespace, output: Output, stop: threading.Event) -> int:
    lake = absolute(arguments.lake)
    tables, groups = read_names(arguments.tables)
    _check_begin(arguments.begin)
    with store_failures():
        check_tables(lake, tables)
    held = output.position()  # which changes the output
    if held is not None and arguments.begin is not None:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--from {arguments.begin}, and the output has a position already",
            remedy="Leave --from out to go on behind it, or name another output",
        )
    fields = partial(
        avro_field_of if arguments.format == Format.AVRO else field_of,
        decimals=Decimals(arguments.decimals),
        bigints=UnsignedBigints(arguments.unsigned_bigints),
    )
    with store_failures():
        feed = Feed(lake, tables, groups, held or BEGINNING, fields)
        if held is None:
            feed.position = begin(feed, arguments.begin or FROM_BEGINNING, output)
        return follow(feed, output, stop, arguments.poll_seconds if arguments.follow else None)


def _check_begin(word: str | None) -> None:
    is_cut = word is not None and word.isascii() and word.isdigit()
    if not is_cut and word not in (None, FROM_BEGINNING, FROM_STATE, FROM_NEWEST):
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--from {word!r}",
            remedy=f"Give {FROM_BEGINNING}, {FROM_STATE}, {FROM_NEWEST}, or the number of a cut",
        )


def begin(feed: Feed, word: str, output: Output) -> Position:
    """What the first changes come behind; with `state` the rows are out then. Raises `SinkError`."""
    if word == FROM_BEGINNING:
        return BEGINNING
    if word == FROM_STATE:
        step = feed.state()
        if step is not None:
            output.write(step)
        return step.position if step is not None else BEGINNING
    position = feed.at_cut(None if word == FROM_NEWEST else int(word))
    output.write(Step((), position))  # what comes while this is not running is behind it
    return position


def follow(feed: Feed, output: Writes, stop: threading.Event, poll_seconds: float | None) -> int:
    """Until there is nothing new; with `poll_seconds` until somebody stops it. Raises `SinkError`.

    Gives the exit code: 0 unless a table is left out.
    """
    told: dict[TableId, str] = {}
    while not stop.is_set():
        step = feed.next()
        said = waiting(feed) if step is None else told
        said = said | {table: f"{table} is left out, others go on: {why}" for table, why in feed.failed.items()}
        for table, words in said.items():
            if told.get(table) != words:
                print(words, file=sys.stderr)
        told = said
        if step is not None:
            try:
                output.write(step)
            except (ExportSchemaRefused, ExportValueRefused) as refused:
                feed.leave_out(refused, step)
                continue
            feed.position = step.position
        elif poll_seconds is None:
            break
        else:
            stop.wait(poll_seconds)
    return max((failure.exit_code for failure in feed.failed.values()), default=0)


def waiting(feed: Feed) -> dict[TableId, str]:
    """What to say of tables that have stopped in the lake."""
    stops = (stop for stop in Records(feed.lake).stopped_tables().values() if feed.wants(stop.table))
    return {stop.table: f"{stop.table} has stopped in the lake with {stop.code}: its changes wait" for stop in stops}


def check_tables(lake: str, tables: Sequence[TableId]) -> None:
    """Raises `TableNotInLake`."""
    known = set(list_tables(lake))
    for table in tables:
        if table not in known:
            raise TableNotInLake("exporting changes", f"{table} has no changelog in {lake}", remedy=_like(table, known))


def _like(table: TableId, known: Iterable[TableId]) -> str:
    """What to name instead."""
    paths = [each.default_folder for each in sorted(known) if each.tenant == table.tenant]
    found = get_close_matches(table.default_folder, paths, 3, 0) or ["no table of this tenant yet"]
    return f"Name a table of the lake; it has {', '.join(found)}" + (", and others" if len(paths) > len(found) else "")


@contextmanager
def store_failures() -> Iterator[None]:
    """Of the lake's; Arrow tells of a file that is removed in the midst of a scan."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, DeltaError, pa.ArrowException) as failure:
        raise LakeStorageFailed(
            "exporting changes",
            f"a store failed: {reason_of(failure) if isinstance(failure, OSError) else type(failure).__name__}",
            data="The position stays where it was; what is not out comes with the next start",
            remedy="Check the lake's storage, then start it again",
        ) from failure
