"""`python -m tests.soak`: thousands of batches through a sink without a source, and what grows meanwhile.

Comes in: landed files, written by hand some entries ahead of the sink; each entry is a batch. Goes out: a line for each
`--every` batches: CPU of a batch over all of the sink's processes, CPU to open a changelog, a current state and
`_menura/cuts`, files by folder, bytes, and resident memory. What Spark's tasks and its driver do to the lake is done
here without Spark; with `--spark` by the sink itself, which takes three times as long. Each table has as many rows at
the end as at the beginning, changelogs keep `ROWS`, and no old version is kept (`keep_hours` 0), so that all shall be
flat over the 1,024 versions in which each kind of a table's cleaning has had its turn. Landed files go once they are
applied, as a gateway has them go. What the last lines have more of than those at a fifth of the run, by more than
`MOST_GROWTH`, stands in build/soak-lake.json and fails the run.
"""

import argparse
import json
import logging
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pyarrow as pa

from spark_sink.ingest.cut_log_source import Limits, entry_rows
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSettings, TaskSize, apply_tables
from spark_sink.lake.changelog_retention import KeepRules
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import list_tables
from spark_sink.running import run
from spark_sink.spark import start_session
from spark_sink.work import CutSeen, EventSeen, Result, TableId, split_rows
from tests.servers import ROOT
from tests.spark_sink.landing import Batch, Event, Table, Values, Writer, delete, insert, table_id, truncate, update

COLUMNS = {"id": pa.int64(), "note": pa.string()}
KEYED, SELDOM, EMPTIED = (Table(name, COLUMNS) for name in ("keyed", "seldom", "emptied"))
KEYLESS = Table("keyless", COLUMNS, key=())
ROWS = 500
KEEP_CHANGELOGS = KeepRules.parse([f"{ROWS}rows"])
AHEAD = 100
#: the mean of the last fifth of the lines beside that of the second
MOST_GROWTH = 1.3


@dataclass(frozen=True)
class Line:
    batches: int
    #: of one batch, over the driver, its JVM and its Python processes
    cpu_ms: float
    wall_ms: float
    #: CPU to open a table, and to list all of them
    open_ms: dict[str, float]
    files: dict[str, int]
    lake_bytes: int
    resident_bytes: dict[str, int]


def row(key: int, version: int = 0) -> Values:
    return {"id": key, "note": f"note {key} {version}"}


def batches_of(number: int) -> Iterator[Batch]:
    """What happens in one cut; each table keeps its number of rows once it has `ROWS`."""
    key, version = number % ROWS, number // ROWS
    if version == 0:
        yield KEYED, [insert(**row(key))]
        yield KEYLESS, [insert(**row(key))]
    else:
        yield KEYED, [update(row(key, version - 1), row(key, version))]
        yield KEYLESS, [delete(**row(number - ROWS)), insert(**row(number))]
    if number % 10 == 0:
        yield SELDOM, [insert(**row(number // 10 % ROWS, version))]
    if number % 50 == 0:
        yield Event(KEYED, "SWAPPED")
    if number % 100 == 0:
        yield truncate(EMPTIED)
        yield EMPTIED, [insert(**row(0))]


class Feed:
    """Writes entries some way ahead of the sink and removes landed files behind it."""

    def __init__(self, folder: Path, batches: int) -> None:
        self._writer = Writer(folder)
        self._batches = batches
        self._removed = 0

    def follow(self, done: int) -> None:
        while self._writer.entry < min(self._batches, done + AHEAD):
            self._writer.cut(*batches_of(self._writer.entry))
        if done - self._removed > AHEAD:
            self._removed = done
            for file in (self._writer.folder / "data").rglob("*.parquet"):
                if int(file.name.split("-")[1]) <= done:
                    file.unlink()


class Meter:
    """Of this process and all below it."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._us = psutil.Process()
        self.lines: list[Line] = []
        self._cpu, self._at, self._batches = self._cpu_seconds(), time.monotonic(), 0

    def _processes(self) -> list[psutil.Process]:
        return [self._us, *self._us.children(recursive=True)]

    def _cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self._processes()]
        return sum(each.user + each.system for each in times)

    def take(self, batches: int) -> None:
        cpu, at, done = self._cpu_seconds(), time.monotonic(), max(1, batches - self._batches)
        files, size = self._disk()
        cpu_ms, wall_ms = (round(1e3 * taken / done, 1) for taken in (cpu - self._cpu, at - self._at))
        self.lines.append(Line(batches, cpu_ms, wall_ms, self._open_ms(), files, size, self._resident()))
        print(json.dumps(asdict(self.lines[-1])), flush=True)
        self._cpu, self._at, self._batches = self._cpu_seconds(), time.monotonic(), batches

    def _disk(self) -> tuple[dict[str, int], int]:
        files, size = Counter[str](), 0
        for path in self._lake.rglob("*"):
            try:
                if path.is_file():
                    size += path.stat().st_size
                    files[str(path.parent.relative_to(self._lake))] += 1
            except OSError:  # the sink removes files meanwhile
                continue
        return dict(sorted(files.items())), size

    def _open_ms(self) -> dict[str, float]:
        kept = table_id(KEYED).folder(str(self._lake))
        folders = {name: f"{kept}/{name}" for name in ("changelog", "current")}
        folders |= {name: f"{self._lake}/_menura/{name}" for name in ("cuts", "events")}
        found = {}
        for name, folder in folders.items():
            began = time.thread_time()
            open_table(folder)
            found[name] = round(1e3 * (time.thread_time() - began), 2)
        began = time.process_time()
        assert list_tables(str(self._lake))
        found["list_tables"] = round(1e3 * (time.process_time() - began), 2)
        return found

    def _resident(self) -> dict[str, int]:
        found = Counter[str]()
        for process in self._processes():
            name = "driver" if process == self._us else "jvm" if "java" in process.name() else "python"
            found[name] += process.memory_info().rss
        return dict(found)


def by_tasks(folder: Path, feed: Feed, meter: Meter, batches: int, every: int) -> None:
    """What a task does with its rows, and the driver with what came of it, one entry after the other."""
    log, records = LandingLog(str(folder / "landing")), Records(str(folder / "lake"), keep_hours=0)
    recorded: dict[TableId, Recorded] = {}
    for number in range(1, batches + 1):
        feed.follow(number - 1)
        entry = log.read_entry(number)
        assert entry is not None
        known, tables = split_rows(entry_rows(entry))
        settings = TaskSettings(
            *(str(folder / name) for name in ("landing", "lake")),
            frozenset(),
            TaskSize(),
            recorded,
            keep_hours=0,
            keep_changelogs=KEEP_CHANGELOGS,
        )
        outcomes = list(apply_tables(settings, tables.items()))
        for outcome in outcomes:
            assert outcome.result is not Result.STOPPED, outcome.message
            before = recorded.get(outcome.table, NOTHING)
            recorded[outcome.table] = before.followed_by(outcome.changelog_version, outcome.current_version)
        records.record_events([each for each in known if isinstance(each, EventSeen)])
        records.record_batch([each for each in known if isinstance(each, CutSeen)], outcomes)
        if number % every == 0:
            meter.take(number)


def by_spark(folder: Path, feed: Feed, meter: Meter, batches: int, every: int) -> None:
    """The sink itself, an entry a batch."""
    status, stop = SinkStatus(), threading.Event()
    settings = SinkSettings(
        *(str(folder / name) for name in ("landing", "lake", "checkpoint")),
        trigger_seconds=0.0,
        limits=Limits(cuts=1),
        keep_hours=0,
        keep_changelogs=KEEP_CHANGELOGS,
    )

    def watch() -> None:
        while not stop.wait(0.2):
            now = status.now()
            feed.follow(now.durable_entry)
            if now.batches >= every * (len(meter.lines) + 1):
                meter.take(now.batches)
            if now.entry >= batches or now.stopped:
                stop.set()

    feed.follow(0)
    watching = threading.Thread(target=watch, name="watch", daemon=True)
    watching.start()
    session = start_session("local[2]")
    try:
        run(session, settings, stop, status)
    finally:
        stop.set()
        watching.join()
        session.stop()
    assert not status.now().stopped, status.now().stopped


def growth(lines: Sequence[Line]) -> dict[str, tuple[float, float]]:
    """What the last fifth of the lines has more of than the second one, by name: both means."""
    fifth = len(lines) // 5
    if not fifth:
        return {}
    before, after = _means(lines[fifth : 2 * fifth]), _means(lines[-fifth:])
    return {name: (before.get(name, 0.0), mean) for name, mean in after.items() if _has_grown(before.get(name), mean)}


def _has_grown(before: float | None, after: float) -> bool:
    """By more than a few: so many wait for a cleaning."""
    return before is None or after > MOST_GROWTH * before + 2


def _means(lines: Sequence[Line]) -> dict[str, float]:
    flat = [_flat(line) for line in lines]
    return {name: statistics.mean(each.get(name, 0.0) for each in flat) for name in flat[-1]}


def _flat(line: Line) -> dict[str, float]:
    found: dict[str, float] = {"cpu_ms": line.cpu_ms, "lake_bytes": line.lake_bytes}
    for name, values in (("open", line.open_ms), ("files", line.files), ("resident", line.resident_bytes)):
        found |= {f"{name} {key}": float(value) for key, value in values.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--batches", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--spark", action="store_true", help="by the sink itself")
    parser.add_argument("--folder", type=Path, help="is kept (default: a new one, which is removed)")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="menura-soak-"))
    feed, meter = Feed(folder / "landing", chosen.batches), Meter(folder / "lake")
    (by_spark if chosen.spark else by_tasks)(folder, feed, meter, chosen.batches, chosen.every)
    grown = growth(meter.lines)
    figures = {"lines": [asdict(line) for line in meter.lines], "grown": grown}
    ROOT.joinpath("build").mkdir(exist_ok=True)
    ROOT.joinpath("build/soak-lake.json").write_text(json.dumps(figures, indent=1))
    if chosen.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    print("grown:", json.dumps(grown) if grown else "nothing", flush=True)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
