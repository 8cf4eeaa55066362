"""`python -m tests.spark_sink.divided_sink`: a sink that divides views of any size, and is held or killed on the way.

With `--kill-once FILE` the first Python worker that has written a range's files makes FILE and kills itself with -9.
With `--hold FILE` the driver makes FILE once all ranges are computed, and then waits for ever before the commit.
"""

import argparse
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from spark_sink.cli import run
from spark_sink.ingest import divided_views
from spark_sink.ingest import views as ingest_views
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.view_task import ViewSettings
from spark_sink.landed.storage import use_options
from spark_sink.spark import start_session
from spark_sink.views.division import Dividing


def killing(
    task: Callable[[Any], Callable[[Iterable[Any]], Iterator[Any]]], mark: str, settings: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    compute = task(settings)

    def run_ranges(ranges: Iterable[Any]) -> Iterator[Any]:
        for part in compute(ranges):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                yield part
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    return run_ranges


def held(mark: str, _settings: ViewSettings) -> Any:
    """Never returns."""
    Path(mark).touch()
    threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "landing", "lake", "checkpoint", "views"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--storage-option", action="append", default=[])
    parser.add_argument("--kill-once", default="")
    parser.add_argument("--hold", default="")
    chosen = parser.parse_args()
    use_options(chosen.storage_option)
    any_size = Dividing(least_rows=0, least_gain=0)
    ingest_views.ViewSettings = partial(ViewSettings, dividing=any_size)  # type: ignore[assignment,misc]
    if chosen.kill_once:
        divided_views._range_task = partial(killing, divided_views._range_task, chosen.kill_once)
    if chosen.hold:
        divided_views._end_task = partial(held, chosen.hold)
    session = start_session(chosen.master, dict(word.split("=", 1) for word in chosen.conf))
    settings = SinkSettings(
        chosen.landing, chosen.lake, chosen.checkpoint, available_now=True, views=chosen.views, view_stores=""
    )
    run(session, settings, threading.Event())
    session.stop()


if __name__ == "__main__":
    main()
