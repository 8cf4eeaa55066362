"""`menura sink run`: the sink as a process, from its arguments to its exit code. What reads a lake is handed on."""

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from deltalake.exceptions import DeltaError
from menura import log_format
from menura.completion import of_parser
from menura.instants import now_us
from menura.lake_report import LakeProblem, clipped
from menura.naming import is_identity, local_name
from menura.signals import set_at_signal
from menura.stores.address import absolute, is_local
from menura.stores.reasons import reason_of
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink import (
    export_arguments,
    export_command,
    lake_command,
    plugin_command,
    search_command,
    tail_command,
    trace_command,
)
from spark_sink.errors import QueryFailed, SinkError, SinkSettingInvalid
from spark_sink.ingest.batch_jobs import condition
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.views_file import ViewsFile
from spark_sink.lake.changelog_retention import KeepRules
from spark_sink.lake.folder_rules import FolderRules
from spark_sink.lake.record_rows import FOLDER
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.schema_policy import SchemaPolicy, SchemaRules
from spark_sink.lake.table_options import NO_OPTION, OPTIONS, OptionRules
from spark_sink.lake.tail import MERGE_SECONDS, Waiting
from spark_sink.landed.storage import use_options
from spark_sink.reporter import Access, LakeName, Reporter
from spark_sink.spark import start_session
from spark_sink.views.store_folders import default_folder

WAIT_SECONDS = 1.0
#: where there is more to be done: a batch that has come meanwhile goes first
SHORT_WAIT_SECONDS = 0.1
#: a batch in progress may end within this time after a stop; then it is broken off, and replayed at the next start
STOP_GRACE_SECONDS = 5.0
#: how long a query that Spark ends again and again, without a batch in between, is begun again: on a starved machine no
#: Python process may start within Spark's 10 s for many times on end
RESTARTS_SECONDS = 600.0
#: between two restarts; they double from 2 s
LONGEST_PAUSE_SECONDS = 30.0
#: between two looks whether a store that is away is back; they double
FIRST_PAUSE_SECONDS = 0.5

_HANDED_ON = {
    "export": export_command.main,
    "lake": lake_command.main,
    "plugin": plugin_command.main,
    "search": search_command.main,
    "tail": tail_command.main,
    "trace": trace_command.main,
}

logger = logging.getLogger("menura.sink")


def main() -> int:
    handed_on = _HANDED_ON.get(sys.argv[0].removeprefix("menura "))
    if handed_on is not None:
        return handed_on()
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
    logging.Formatter.converter = time.gmtime
    log_format.use(arguments.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        settings = _settings(arguments)
        with (
            _status(arguments.traces, settings) as sink_status,
            _outside(arguments, settings, sink_status) as reporter,
        ):
            session = start_session(arguments.master, _conf(arguments.conf))
            set_at_signal(stop, signal.SIGTERM, signal.SIGINT)  # Spark has put a handler of its own for Ctrl-C
            try:
                run(session, settings, stop, sink_status, reporter)
            finally:
                session.stop()
    except SinkError as failure:
        return _refused(failure)
    except (Py4JNetworkError, ConnectionError):  # of the socket between Python and the JVM
        return _refused(_ended_by_spark("its JVM has ended"))
    return 0


def _refused(failure: SinkError) -> int:
    print(f"menura sink: {failure}", file=sys.stderr)
    return failure.exit_code


@contextmanager
def _status(traces_url: str | None, settings: SinkSettings) -> Iterator[SinkStatus]:
    """What the sink knows of its lake; traces are made of it where somebody has asked for them."""
    if traces_url is None:
        yield SinkStatus()
        return
    try:
        from spark_sink.traces import sending  # noqa: PLC0415  (only who wants traces needs the package)
    except ModuleNotFoundError as missing:
        raise SinkSettingInvalid(
            "reading the arguments", f"the package {missing.name} is not installed", remedy="Install menura[traces]"
        ) from missing
    with sending(settings.landing, traces_url) as traces:
        yield SinkStatus(traces.applied)


@contextmanager
def _outside(arguments: argparse.Namespace, settings: SinkSettings, status: SinkStatus) -> Iterator[Reporter | None]:
    """What tells others of the sink: metrics, and the reporter, which begins once the sink knows its lake."""
    with ExitStack() as ends:
        if arguments.metrics is not None:
            # Only who wants metrics needs the package.
            from spark_sink.metrics import serving_metrics  # noqa: PLC0415

            folders = {"scratch": Path(tempfile.gettempdir())}
            folders |= {"lake": Path(settings.lake)} if is_local(settings.lake) else {}
            shown = ends.enter_context(
                serving_metrics(arguments.metrics, status, settings.landing, folders, status.health())
            )
            logger.info("metrics on http://%s/metrics", shown)
        if arguments.api is None:
            yield None
            return
        name = arguments.name or local_name(settings.lake)
        if not is_identity(name):
            raise SinkSettingInvalid(
                "reading the arguments", f"--name {name!r}", remedy="Use 1 to 63 of a-z, 0-9, '-' and '_'"
            )
        reporter = Reporter(
            arguments.api,
            LakeName(name, settings.lake, settings.landing),
            status,
            Access(arguments.api_token_file, arguments.api_ca),
        )
        try:
            yield reporter
        except SinkError as failure:
            reporter.fail(failure)
            raise
        finally:
            reporter.stop()


def run(
    session: SparkSession,
    settings: SinkSettings,
    stop: threading.Event,
    status: SinkStatus | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Run until `stop` is set or, with `available_now`, until all is done. Raises `SinkError`.

    What Spark itself ends, e.g. since a Python process was killed or did not start in time, begins again from the
    checkpoint; where that happens for `RESTARTS_SECONDS` without a batch, the error is raised. A store that is away is
    waited for, however long that takes, unless the sink has an end (`available_now`).
    """
    sink = Sink(session, settings, status or SinkStatus())
    restarts = Restarts()
    while True:
        try:
            _follow(sink, stop, reporter)
        except (SinkError, PySparkException, Py4JJavaError, OSError, DeltaError) as failed:
            failure = _failure_of(failed)
            if failure is None:
                raise
            if _waits_for_stores(sink, stop, reporter):
                continue
            restarts = restarts.after_failure(time.monotonic(), sink.batches)
            is_of_folder = failure is sink.failure and is_local(sink.settings.lake)
            if is_of_folder or restarts.is_over(time.monotonic()):
                raise failure from failed
            logger.warning("query begins again failures=%d error=%s", restarts.failures, failure)
            stop.wait(restarts.pause_seconds)
        else:
            break
    sink.views.stop(STOP_GRACE_SECONDS, finish=settings.available_now)
    sink.verifications.stop(STOP_GRACE_SECONDS, finish=settings.available_now)
    logger.info("sink stopped")


def _failure_of(failed: Exception) -> SinkError | None:
    """What may be over when the query begins again; None for what may not."""
    if isinstance(failed, PySparkException | Py4JJavaError):
        return _ended_by_spark(f"Spark ended it: {condition(failed)}")
    if isinstance(failed, SinkError):
        return None if failed.terminal else failed
    if isinstance(failed, ConnectionError | Py4JNetworkError):  # of the socket between Python and the JVM
        return None
    return QueryFailed(
        "starting the sink",
        f"a store failed: {reason_of(failed)}",
        data="Nothing was written",
        remedy="Check the storage of landing, lake and checkpoint, then start the sink again",
    )


def _waits_for_stores(sink: Sink, stop: threading.Event, reporter: Reporter | None) -> bool:
    """Whether stores were away; until they are back, or the sink is to end, they are asked again and it is told."""
    since_us, began, pause = now_us(), time.monotonic(), FIRST_PAUSE_SECONDS
    told = ""
    while not stop.is_set() and (away := sink.store_problem(since_us)) is not None:
        if sink.settings.available_now and time.monotonic() - began > RESTARTS_SECONDS:
            raise away
        if str(away) != told:
            logger.warning("the sink waits for its store error=%s", away)
            told = str(away)
        sink.status.waits_for(LakeProblem(away.code, clipped(str(away)), terminal=False))
        if reporter is not None:
            _begin_reports(reporter, sink)
        stop.wait(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    sink.status.waits_for(None)
    if told and not stop.is_set():
        logger.warning("the sink's stores answer again, the query begins again")
    return bool(told)


@dataclass(frozen=True, slots=True)
class Restarts:
    """The query's failures in a row: how many, and when the first and the last were, in monotonic seconds.

    A batch ends the row; so does a query that has run for `RESTARTS_SECONDS`, though a quiet source gave it none.
    """

    failures: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    batches: int = 0

    def after_failure(self, now: float, batches: int) -> "Restarts":
        if self.failures and batches == self.batches and now - self.last_at <= RESTARTS_SECONDS:
            return replace(self, failures=self.failures + 1, last_at=now)
        return Restarts(1, now, now, batches)

    def is_over(self, now: float) -> bool:
        return now - self.first_at > RESTARTS_SECONDS

    @property
    def pause_seconds(self) -> float:
        return float(min(2.0**self.failures, LONGEST_PAUSE_SECONDS))


def _follow(sink: Sink, stop: threading.Event, reporter: Reporter | None) -> None:
    query = sink.start()
    logger.info("sink started landing=%s lake=%s", sink.settings.landing, sink.settings.lake)
    if reporter is not None:
        _begin_reports(reporter, sink)
    pulse = sink.status.pulse
    try:
        with sink.status.following():
            while not stop.is_set():
                pulse.beat()
                has_ended = _ended(query, sink)
                with pulse.excused():
                    sink.retry_due()  # also what the last batch has asked for
                    sink.merge_due()
                if has_ended:
                    break
    finally:
        sink.stop_batches(STOP_GRACE_SECONDS)
        query.stop()


def _begin_reports(reporter: Reporter, sink: Sink) -> None:
    want = None if sink.settings.views else sink.views.want
    reporter.start(sink.ask_retry, sink.verifications.suspected, want)


def _ended(query: StreamingQuery, sink: Sink) -> bool:
    """Whether the query ended within the next moment. Raises the error that ended it."""
    try:
        seconds = SHORT_WAIT_SECONDS if sink.has_more else WAIT_SECONDS
        return bool(query.awaitTermination(seconds))  # type: ignore[arg-type]
    except StreamingQueryException as failed:
        if sink.failure is not None:
            raise sink.failure from failed
        raise _ended_by_spark(condition(failed)) from failed


def _ended_by_spark(found: str) -> QueryFailed:
    return QueryFailed(
        "running the streaming query",
        f"Spark ended it: {found}",
        data="What was not checkpointed will be done again; nothing is written twice",
        remedy="Start the sink again; when it repeats, report it",
    )


def _conf(words: Sequence[str]) -> dict[str, str]:
    settings = dict(word.split("=", 1) for word in words if word.startswith("spark.") and "=" in word)
    if len(settings) != len(words):
        wrong = next(
            (word for word in words if word.partition("=")[0] not in settings), "a setting that is there twice"
        )
        raise SinkSettingInvalid("reading the arguments", f"--conf {wrong}", remedy="Give spark.KEY=VALUE, each once")
    return settings


def _settings(arguments: argparse.Namespace) -> SinkSettings:
    if arguments.trigger_seconds < 0:
        raise SinkSettingInvalid(
            "reading the arguments", f"--trigger-seconds {arguments.trigger_seconds}", remedy="Give 0 or more seconds"
        )
    if arguments.keep_hours < 1:
        raise SinkSettingInvalid(
            "reading the arguments", f"--keep-hours {arguments.keep_hours}", remedy="Give 1 or more hours"
        )
    if arguments.merge_seconds < 0:
        raise SinkSettingInvalid(
            "reading the arguments", f"--merge-seconds {arguments.merge_seconds}", remedy="Give 0 or more seconds"
        )
    try:
        keep_changelogs = KeepRules.parse(arguments.keep_changelog)
    except ValueError as wrong:
        raise SinkSettingInvalid(
            "reading the arguments", f"--keep-changelog {wrong}", remedy="Give e.g. 30d or acme/shop/shop.orders=24h"
        ) from wrong
    try:
        schema_changes = SchemaRules.parse(arguments.schema_changes)
    except ValueError as wrong:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--schema-changes {wrong}",
            remedy="Give e.g. lenient or acme/shop/shop.orders=exception",
        ) from wrong
    try:
        table_options = OptionRules.parse(arguments.table_options)
    except ValueError as wrong:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--table-options {wrong}",
            remedy="Give e.g. commit_time or acme/shop/shop.orders=soft_delete,commit_time",
        ) from wrong
    try:
        table_folders = FolderRules.parse(arguments.table_folders)
    except ValueError as wrong:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--table-folders {wrong}",
            remedy="Give e.g. '{database}/{table}' or 'acme/shop/shop[.](?P<name>.*)=sales/{name}'",
        ) from wrong
    use_options(arguments.storage_option)
    if arguments.views is not None:
        ViewsFile(arguments.views).read()
    landing, lake = (absolute(url) for url in (arguments.landing, arguments.lake))
    if "%" in lake:
        raise SinkSettingInvalid(
            "reading the arguments", f"--lake {lake} has a '%', which Delta's readers decode", remedy="Choose another"
        )
    return SinkSettings(
        landing=landing,
        lake=lake,
        checkpoint=absolute(arguments.checkpoint or f"{lake}/{FOLDER}/checkpoint"),
        trigger_seconds=arguments.trigger_seconds,
        available_now=arguments.available_now,
        keep_hours=arguments.keep_hours,
        waiting=Waiting(arguments.merge_seconds),
        keep_changelogs=keep_changelogs,
        schema_changes=schema_changes,
        table_options=table_options,
        table_folders=table_folders,
        views=str(arguments.views or ""),
        view_stores=arguments.view_stores and str(Path(arguments.view_stores).absolute()),
    )


def completions() -> dict[tuple[str, ...], list[str]]:
    """Of its words: see `menura.completion`."""
    others = {
        "export": export_arguments,
        "lake": lake_command,
        "plugin": plugin_command,
        "search": search_command,
        "tail": tail_command,
        "trace": trace_command,
    }
    found = of_parser(("sink",), _parser())
    for word, module in others.items():
        found |= of_parser((word,), module.parser())
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura sink", description="From the gateway's landing into the lake.")
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="follow the cut log until stopped")
    running.add_argument("--landing", required=True, metavar="URL", help="what `menura gateway run --landing` names")
    running.add_argument("--lake", required=True, metavar="URL", help="folder of the Delta tables")
    running.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a landing or lake that is a URL; repeatable",
    )
    running.add_argument("--master", default="local[*]", help="Spark's master (default: this machine, all cores)")
    running.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark's, e.g. spark.executor.memory=4g; repeatable",
    )
    running.add_argument("--checkpoint", metavar="URL", help="Spark's checkpoint (default: LAKE/_menura/checkpoint)")
    running.add_argument(
        "--api", metavar="URL", help="the control plane's, which is told how the lake is (http://127.0.0.1:7080)"
    )
    said = "file with a token of the role sink, for --api (MENURA_API_TOKEN_FILE)"
    token_file, ca = (os.environ.get(f"MENURA_API_{name}") for name in ("TOKEN_FILE", "CA"))
    running.add_argument("--api-token-file", metavar="FILE", type=Path, help=said, default=token_file or None)
    said = "file with the CA of an https:// --api, in place of the system's (MENURA_API_CA)"
    running.add_argument("--api-ca", metavar="FILE", type=Path, help=said, default=ca or None)
    running.add_argument("--name", metavar="NAME", help="the lake's, unique among lakes (default: of host and lake)")
    running.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics, /livez and /readyz there")
    running.add_argument("--traces", metavar="URL", help="send OpenTelemetry traces of changes there, by OTLP/HTTP")
    running.add_argument("--log-format", choices=log_format.FORMATS, help=log_format.HELP)
    running.add_argument(
        "--keep-hours",
        type=int,
        default=KEEP_HOURS,
        metavar="N",
        help="old versions of tables stay readable so long, then their files are removed (default: %(default)s)",
    )
    running.add_argument(
        "--keep-changelog",
        metavar="[TABLES=]LIMIT",
        action="append",
        default=[],
        help="how much of changelogs stays: 48h, 30d, 1000000rows or forever (default: forever), of all tables or of"
        " those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?; repeatable, the last one that fits counts",
    )
    running.add_argument(
        "--schema-changes",
        metavar="[TABLES=]POLICY",
        action="append",
        default=[],
        help=f"what becomes of changes of tables' definitions: {', '.join(SchemaPolicy)} (default: evolve), of all"
        " tables or of those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?; repeatable, the last one that fits"
        " counts",
    )
    running.add_argument(
        "--table-options",
        metavar="[TABLES=]OPTIONS",
        action="append",
        default=[],
        help=f"what current states have beyond their sources' rows: {', '.join(OPTIONS)}, with commas between, or"
        f" {NO_OPTION} (default), of all tables or of those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?;"
        " repeatable, the last one that fits counts",
    )
    running.add_argument(
        "--table-folders",
        metavar="[REGEX=]TEMPLATE",
        action="append",
        default=[],
        help="where in the lake new tables stand, e.g. '{database}/{table}' or '.*/shop[.](?P<name>.*)=sales/{name}'"
        " (default: {tenant}/{source}/{database}/{table}), of all tables or of those whose TENANT/SOURCE/DATABASE.TABLE"
        " the regular expression fits; a table that is there stays where it is; repeatable, the last one that fits"
        " counts",
    )
    running.add_argument(
        "--merge-seconds",
        type=float,
        default=MERGE_SECONDS,
        metavar="N",
        help="changes of a table of more than 4 MiB wait so long in its changelog before they are merged, or two"
        " seconds for each MiB that it has, if that is longer; 0: they do not wait (default: %(default)s)",
    )
    running.add_argument(
        "--views",
        metavar="FILE",
        type=Path,
        help="definitions of views, a JSON document that is read again when it changes; without it the control plane's",
    )
    running.add_argument(
        "--view-stores",
        metavar="FOLDER",
        default=default_folder(),
        help="folder on each machine's own disk for copies of views' large tables, by key, which are made again from"
        " the lake when they are lost; '': views scan their tables (default: menura-view-stores-UID among temporary"
        " files)",
    )
    trigger = running.add_mutually_exclusive_group()
    trigger.add_argument(
        "--trigger-seconds", type=float, default=1.0, metavar="N", help="a micro-batch at most each N seconds"
    )
    trigger.add_argument("--available-now", action="store_true", help="do what the log holds now, then end")
    return parser
