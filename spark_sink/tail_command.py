"""`menura tail TABLE...`: changes of a lake's tables as they come, for a person at a terminal, without Spark.

Comes in: the lake's address, tables, which changes are wanted. Goes out: lines on standard output; first the newest
changes that are there, then what comes. Nothing is kept, nothing of the lake is changed.
"""

import argparse
import os
import shutil
import signal
import sys
import threading

from menura.signals import set_at_signal
from menura.stores.address import absolute

from spark_sink.errors import SinkError
from spark_sink.export.console import ConsoleOutput, Filter
from spark_sink.export.envelope import OPERATIONS
from spark_sink.export.feed import Feed
from spark_sink.export.fields import readable
from spark_sink.export.lake_access import check_tables, store_failures
from spark_sink.export.outputs import standard_output
from spark_sink.export_arguments import add_arguments, operations
from spark_sink.export_command import follow
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options


def main() -> int:
    arguments = parser().parse_args()
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        use_options(arguments.storage_option)
        lake = absolute(arguments.lake)
        tables, groups = read_names(arguments.tables)
        with store_failures():
            check_tables(lake, tables)
            feed = Feed(lake, tables, groups, fields=readable, removals=False)
            feed.position = feed.newest(arguments.last)
            output = _output(arguments, with_table=len(tables) != 1 or bool(groups))
            return follow(feed, output, stop, None if arguments.once else arguments.poll_seconds)
    except SinkError as failure:
        print(f"menura tail: {failure}", file=sys.stderr)
        return failure.exit_code
    except BrokenPipeError:  # who read the lines has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _output(arguments: argparse.Namespace, *, with_table: bool) -> ConsoleOutput:
    is_terminal = sys.stdout.isatty()
    colours = {"always": True, "never": False}.get(arguments.color, is_terminal and not os.environ.get("NO_COLOR"))
    return ConsoleOutput(
        standard_output(),
        Filter(tuple(arguments.where), frozenset(arguments.op or OPERATIONS)),
        colours=colours,
        width=shutil.get_terminal_size().columns if is_terminal else None,
        with_table=with_table,
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura tail", description="Changes of a lake's tables as they come.")
    parser.add_argument(
        "tables", metavar="TABLE", nargs="+", help="TENANT/SOURCE/DATABASE/TABLE, as in the lake; less: all below it"
    )
    add_arguments(parser)
    parser.add_argument(
        "--last", type=_rows, default=10, metavar="N", help="rows of each changelog first (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="end when there is nothing new")
    parser.add_argument(
        "--where",
        type=_value,
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="changes with this value before or after, as it is shown; NULL for none; repeatable: all must be so",
    )
    parser.add_argument("--op", type=operations, default="", metavar="OPS", help=f"of {''.join(OPERATIONS)}, e.g. ud")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(default: at a terminal without NO_COLOR)"
    )
    return parser


def _rows(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 6):
        raise argparse.ArgumentTypeError(f"{word!r} is no number up to 999999")
    return int(word)


def _value(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{word!r} is not COLUMN=VALUE")
    return name, value
