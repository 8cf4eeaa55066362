"""`menura sink run`: the sink as a process, from its arguments to its exit code."""

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path

from menura.signals import set_at_signal
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import QueryFailed, SinkError, SinkSettingInvalid
from spark_sink.ingest.query import Sink, SinkSettings, condition
from spark_sink.lake.records import FOLDER
from spark_sink.spark import start_session

WAIT_SECONDS = 1
#: a batch in progress may end within this time after a stop; then it is broken off, and replayed at the next start
STOP_GRACE_SECONDS = 5.0

logger = logging.getLogger("menura.sink")


def main() -> int:
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
    logging.Formatter.converter = time.gmtime
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        settings = _settings(arguments)
        session = start_session(arguments.master)
        set_at_signal(stop, signal.SIGTERM, signal.SIGINT)  # Spark has put a handler of its own for Ctrl-C
        try:
            run(session, settings, stop)
        finally:
            session.stop()
    except SinkError as failure:
        print(f"menura sink: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def run(session: SparkSession, settings: SinkSettings, stop: threading.Event) -> None:
    """Run until `stop` is set or, with `available_now`, until all is done. Raises `SinkError`."""
    sink = Sink(session, settings)
    query = sink.start()
    logger.info("sink started landing=%s lake=%s", settings.landing, settings.lake)
    try:
        while not stop.is_set() and not _ended(query, sink):
            sink.retry_due()
    finally:
        sink.stop_batches(STOP_GRACE_SECONDS)
        query.stop()
    logger.info("sink stopped")


def _ended(query: StreamingQuery, sink: Sink) -> bool:
    """Whether the query ended within the next moment. Raises the error that ended it."""
    try:
        return bool(query.awaitTermination(WAIT_SECONDS))
    except StreamingQueryException as failed:
        if sink.failure is not None:
            raise sink.failure from failed
        raise QueryFailed(
            "running the streaming query",
            f"Spark ended it: {condition(failed)}",
            data="What was not checkpointed will be done again; nothing is written twice",
            remedy="Start the sink again; when it repeats, report it",
        ) from failed


def _settings(arguments: argparse.Namespace) -> SinkSettings:
    if arguments.trigger_seconds < 0:
        raise SinkSettingInvalid(
            "reading the arguments", f"--trigger-seconds {arguments.trigger_seconds}", remedy="Give 0 or more seconds"
        )
    landing, lake = (_absolute(url) for url in (arguments.landing, arguments.lake))
    if "%" in lake:
        raise SinkSettingInvalid(
            "reading the arguments", f"--lake {lake} has a '%', which Delta's readers decode", remedy="Choose another"
        )
    return SinkSettings(
        landing=landing,
        lake=lake,
        checkpoint=_absolute(arguments.checkpoint or f"{lake}/{FOLDER}/checkpoint"),
        trigger_seconds=arguments.trigger_seconds,
        available_now=arguments.available_now,
    )


def _absolute(url: str) -> str:
    """Workers have a working folder of their own."""
    return url.rstrip("/") if "://" in url else str(Path(url).absolute())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura sink", description="From the gateway's landing into the lake.")
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="follow the cut log until stopped")
    running.add_argument("--landing", required=True, metavar="URL", help="what `menura gateway run --landing` names")
    running.add_argument("--lake", required=True, metavar="URL", help="folder of the Delta tables")
    running.add_argument("--master", default="local[*]", help="Spark's master (default: this machine, all cores)")
    running.add_argument("--checkpoint", metavar="URL", help="Spark's checkpoint (default: LAKE/_menura/checkpoint)")
    trigger = running.add_mutually_exclusive_group()
    trigger.add_argument(
        "--trigger-seconds", type=float, default=1.0, metavar="N", help="a micro-batch at most each N seconds"
    )
    trigger.add_argument("--available-now", action="store_true", help="do what the log holds now, then end")
    return parser
