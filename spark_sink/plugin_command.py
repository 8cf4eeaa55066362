"""`menura plugin run FILE`: Python classes that are told of each change of a lake's tables, without Spark.

Comes in: a file in TOML (`spark_sink.plugins.configuration`). Goes out: calls of the plug-ins; see
`spark_sink.export.following` for what is durable. Nothing of the lake is changed.
"""

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from menura.signals import set_at_signal
from menura.stores.address import absolute

from spark_sink.errors import SinkError
from spark_sink.export.feed import Feed
from spark_sink.export.fields import native
from spark_sink.export.following import Follower, follow
from spark_sink.export.lake_access import check_tables, store_failures
from spark_sink.export_arguments import add_retry_argument, retry_seconds_of
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.plugins.configuration import PluginConfig, load, read_config
from spark_sink.plugins.running import PluginConsumer


def main() -> int:
    arguments = parser().parse_args()
    logging.basicConfig(level=logging.DEBUG if arguments.debug else logging.INFO, format="%(levelname)s %(message)s")
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        use_options(arguments.storage_option)
        config = read_config(arguments.file)
        lake = absolute(config.lake)
        with store_failures():
            retry_seconds = retry_seconds_of(arguments, is_endless=not arguments.once)
            plugins = [prepare(lake, config.positions / each.name, each, retry_seconds) for each in config.plugins]
            return follow(plugins, stop, None if arguments.once else arguments.poll_seconds)
    except SinkError as failure:
        print(f"menura plugin: {failure}", file=sys.stderr)
        return failure.exit_code


def prepare(
    lake: str, folder: Path, config: PluginConfig, retry_seconds: float | None = None
) -> Follower[PluginConsumer]:
    """Raises `SinkError` and the store's errors."""
    tables, groups = read_names(config.tables)
    check_tables(lake, tables, groups)
    consumer = PluginConsumer(config.name, load(config), folder)
    feed = Feed(lake, tables, groups, fields=native)
    return Follower(consumer, feed, config.on_error, config.begin, retry_seconds=retry_seconds)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura plugin", description="Plug-ins that follow a lake's tables.")
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="call the plug-ins that a file names, until stopped")
    running.add_argument("file", type=Path, metavar="FILE", help="in TOML: lake, positions, and each [[plugin]]")
    running.add_argument(
        "--once", action="store_true", help="end when there is nothing new, and nothing is to be tried again"
    )
    add_retry_argument(running, "with --once")
    running.add_argument(
        "--poll-seconds", type=float, default=1.0, metavar="N", help="between two looks for new changes"
    )
    running.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a lake that is a URL; repeatable",
    )
    running.add_argument("--debug", action="store_true", help="print what plug-ins raise, with the values in it")
    return parser
