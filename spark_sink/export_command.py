"""`menura export TABLE...`: changes of the lake's tables as messages of Debezium's form, without Spark.

Comes in: the lake's address, tables, and from where: nothing (what the output's position says, or the beginning), the
beginning, the rows as they are, the newest cut, or a cut. Goes out: JSON lines, to a folder (each change once) or to
standard output (each change at least once), or to Kafka (each once, by transactions). Nothing of the lake is changed.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError
from menura.naming import is_identity
from menura.signals import set_at_signal
from menura.stores.address import absolute
from menura.stores.reasons import reason_of

from spark_sink.errors import LakeStorageFailed, SinkError, SinkSettingInvalid, TableNotInLake
from spark_sink.export.envelope import OPERATIONS
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import Decimals, field_of
from spark_sink.export.outputs import FolderOutput, Form, Output, StreamOutput, Writes, standard_output
from spark_sink.export.position import BEGINNING, Position
from spark_sink.lake.records import Records
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.reading import list_tables
from spark_sink.work import TableId

_BEGINNING, _STATE, _NEWEST = "beginning", "state", "newest"


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
    if arguments.kafka is not None:
        return _kafka_output(arguments, form)
    if arguments.output is not None:
        return FolderOutput(arguments.output, form)
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
    return KafkaOutput(arguments.kafka, arguments.name, form, dict(arguments.kafka_option))


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
    with store_failures():
        feed = Feed(lake, tables, groups, held or BEGINNING, partial(field_of, decimals=Decimals(arguments.decimals)))
        if held is None:
            feed.position = begin(feed, arguments.begin or _BEGINNING, output)
        return follow(feed, output, stop, arguments.poll_seconds if arguments.follow else None)


def _check_begin(word: str | None) -> None:
    if word is not None and word not in (_BEGINNING, _STATE, _NEWEST) and not (word.isascii() and word.isdigit()):
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--from {word!r}",
            remedy=f"Give {_BEGINNING}, {_STATE}, {_NEWEST}, or the number of a cut",
        )


def begin(feed: Feed, word: str, output: Output) -> Position:
    """What the first changes come behind; with `state` the rows are out then. Raises `SinkError`."""
    if word == _BEGINNING:
        return BEGINNING
    if word == _STATE:
        step = feed.state()
        if step is not None:
            output.write(step)
        return step.position if step is not None else BEGINNING
    position = feed.at_cut(None if word == _NEWEST else int(word))
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
            output.write(step)
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
            raise TableNotInLake(
                "exporting changes",
                f"{table} has no changelog in {lake}",
                remedy="See which tables there are with spark_sink.reading.list_tables",
            )


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of each command that reads changes."""
    parser.add_argument("--lake", required=True, metavar="URL", help="what `menura sink run --lake` names")
    parser.add_argument(
        "--poll-seconds", type=float, default=1.0, metavar="N", help="between two looks for new changes"
    )
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a lake that is a URL; repeatable",
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="menura export", description="Changes of the lake's tables as messages of Debezium's form."
    )
    parser.add_argument(
        "tables", metavar="TABLE", nargs="+", help="TENANT/SOURCE/DATABASE/TABLE, as in the lake; less: all below it"
    )
    add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="files, each change once; without it standard output"
    )
    parser.add_argument(
        "--kafka", metavar="HOST:PORT,...", help="topics, each change once for who reads committed ones"
    )
    parser.add_argument(
        "--name",
        default="menura",
        help="of the export, which its position and transactions have (default: %(default)s)",
    )
    parser.add_argument(
        "--kafka-option",
        type=_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of librdkafka, e.g. of TLS; a value env:NAME is read there; repeatable",
    )
    parser.add_argument("--position", type=Path, metavar="FILE", help="of standard output: read, and kept, here")
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="WHEN",
        help=f"{_BEGINNING} of the changelog, {_STATE} (rows as they are, then changes), {_NEWEST}, or the number of a"
        f" cut; without it behind the output's position, else {_BEGINNING}",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until it is stopped")
    parser.add_argument("--schema", action="store_true", help="each message with its Kafka Connect schema")
    parser.add_argument("--with-keys", action="store_true", help="KEY, a tab, VALUE; with tombstones after deletes")
    parser.add_argument("--no-tombstones", action="store_true")
    parser.add_argument(
        "--skipped-operations", metavar="OPS", default="", type=operations, help=f"of {''.join(OPERATIONS)}, e.g. t"
    )
    parser.add_argument(
        "--decimals",
        choices=[each.value for each in Decimals],
        default=Decimals.PRECISE.value,
        help="what decimals are: bytes, or numbers, or texts (default: %(default)s)",
    )
    return parser


def _option(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{word!r} is not KEY=VALUE")
    if not value.startswith("env:"):
        return key, value
    if (found := os.environ.get(value[4:])) is None:
        raise argparse.ArgumentTypeError(f"{key}: {value[4:]} is not set")
    return key, found


def operations(word: str) -> str:
    if set(word) - set(OPERATIONS):
        raise argparse.ArgumentTypeError(f"{word!r} has others than {', '.join(OPERATIONS)}")
    return word
