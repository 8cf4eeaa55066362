"""`python -m tests.spark_sink.detached_sink`: a sink that merges any table beside batches, and is held on the way.

With `--hold STAGE FILE` it makes FILE at that stage of its first merge, and then waits for ever: `writing`, in the
worker that has written a file; `prepared`, before the commit; `committed`, before the commit's record.
"""

import argparse
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from spark_sink.ingest import detached_merge, merging
from spark_sink.ingest.detached_merge import MergeStart
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.file_merge import write_piece
from spark_sink.lake.tail import Waiting
from spark_sink.running import run
from spark_sink.spark import start_session

#: a tail of more is due, and one of twice as many rows is merged with its batch
MOST_ROWS = 8
WAITING = Waiting(3600, -1, most_rows=MOST_ROWS, part_of_table=1e9)

StepTask = Callable[[MergeStart], Callable[[Iterable[Any]], Iterator[object]]]


def hold(mark: str) -> None:
    Path(mark).touch()
    threading.Event().wait()


def held_writing(task: StepTask, mark: str, start: MergeStart) -> Callable[[Iterable[Any]], Iterator[object]]:
    compute = task(start)

    def run_steps(steps: Iterable[Any]) -> Iterator[object]:
        for step in steps:
            yield from compute([step])
            if step.func is write_piece:
                hold(mark)

    return run_steps


def held_after(function: Callable[..., object], mark: str, *arguments: object) -> None:
    function(*arguments)
    hold(mark)


def hold_at(stage: str, mark: str) -> None:
    if stage == "writing":
        detached_merge._step_task = partial(held_writing, detached_merge._step_task, mark)
    elif stage == "prepared":
        detached_merge.prepare = partial(held_after, detached_merge.prepare, mark)
    else:
        merging.commit_merge = partial(held_after, merging.commit_merge, mark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("landing", "lake", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--hold", nargs=2, default=())
    chosen = parser.parse_args()
    if chosen.hold:
        hold_at(*chosen.hold)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    session = start_session("local[2]")
    settings = SinkSettings(
        chosen.landing, chosen.lake, chosen.checkpoint, trigger_seconds=0.1, waiting=WAITING, detached_bytes=0
    )
    run(session, settings, stop)
    session.stop()


if __name__ == "__main__":
    main()
