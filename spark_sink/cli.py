"""`menura sink run`: the sink as a process, from its arguments to its exit code. What reads a lake is handed on."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from menura import log_format
from menura.completion import of_parser
from menura.naming import is_identity, local_name
from menura.signals import set_at_signal
from menura.stores.address import is_local
from py4j.protocol import Py4JNetworkError

from spark_sink import (
    export_arguments,
    export_command,
    lake_command,
    plugin_command,
    search_command,
    tail_command,
    trace_command,
)
from spark_sink.errors import SinkError, SinkSettingInvalid
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.reporter import Access, LakeName, Reporter
from spark_sink.run_arguments import conf_of, parser, settings_of
from spark_sink.running import ended_by_spark, run
from spark_sink.spark import start_session
from spark_sink.spark_scratch import scratch_folders

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
    arguments = parser().parse_args()
    log_format.to_stderr()
    log_format.use(arguments.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    try:
        settings = settings_of(arguments)
        with (
            _status(arguments.traces, settings) as sink_status,
            _outside(arguments, settings, sink_status) as reporter,
        ):
            session = start_session(arguments.master, conf_of(arguments.conf))
            set_at_signal(stop, signal.SIGTERM, signal.SIGINT)  # Spark has put a handler of its own for Ctrl-C
            try:
                run(session, settings, stop, sink_status, reporter)
            finally:
                session.stop()
    except SinkError as failure:
        return _refused(failure)
    except (Py4JNetworkError, ConnectionError):  # of the socket between Python and the JVM
        return _refused(ended_by_spark("its JVM has ended"))
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

            folders = {"scratch": Path(scratch_folders(conf_of(arguments.conf))[0])}
            folders |= {"lake": Path(settings.lake)} if is_local(settings.lake) else {}
            shown = ends.enter_context(
                serving_metrics(
                    arguments.metrics, status, settings.landing, folders, status.health(), arguments.metrics_token_file
                )
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
    found = of_parser(("sink",), parser())
    for word, module in others.items():
        found |= of_parser((word,), module.parser())
    return found
