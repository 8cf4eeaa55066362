"""`menura export TABLE...`: changes of the lake's tables as messages of Debezium's form, without Spark.

Comes in: the lake's address, tables, and from where: nothing (what the output's position says, or the beginning), the
beginning, the rows as they are, the newest cut, or a cut. Goes out: JSON lines, to a folder (each change once) or to
standard output (each change at least once), or to Kafka (each once, by transactions); or Avro, to a folder as object
container files, to Kafka with a schema registry. Nothing of the lake is changed.

`menura export --file FILE` runs the pipes of a file instead (`spark_sink.pipes`), or says how they stand.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from functools import partial

from menura.naming import is_identity
from menura.signals import set_at_signal
from menura.stores.address import absolute

from spark_sink.errors import ExportSchemaRefused, ExportValueRefused, SinkError, SinkSettingInvalid
from spark_sink.export.avro_files import AvroEntries
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import Decimals, UnsignedBigints, avro_field_of, field_of
from spark_sink.export.lake_access import check_tables, store_failures, waiting
from spark_sink.export.outputs import FolderOutput, Form, JsonEntries, Output, StreamOutput, Writes, standard_output
from spark_sink.export.position import BEGINNING, Position
from spark_sink.export.registry import Registry
from spark_sink.export_arguments import (
    FROM_BEGINNING,
    FROM_NEWEST,
    FROM_STATE,
    Format,
    check_file,
    check_format,
    parser,
    retry_seconds_of,
)
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.pipes.configuration import read_config
from spark_sink.pipes.running import run
from spark_sink.pipes.standings import lines
from spark_sink.work import TableId


def main() -> int:
    arguments = parser().parse_args()
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        check_file(arguments)
        use_options(arguments.storage_option)
        if arguments.file is not None:
            return _pipes(arguments, stop)
        return _export(arguments, _output(arguments), stop)
    except SinkError as failure:
        print(f"menura export: {failure}", file=sys.stderr)
        return failure.exit_code
    except BrokenPipeError:  # who read the lines has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _pipes(arguments: argparse.Namespace, stop: threading.Event) -> int:
    config = read_config(arguments.file)
    if arguments.status:
        print("\n".join(lines([(each.name, each.producer) for each in config.pipes], config.positions)))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    retry_seconds = retry_seconds_of(arguments, is_endless=arguments.follow)
    return run(config, stop, arguments.poll_seconds if arguments.follow else None, retry_seconds)


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
