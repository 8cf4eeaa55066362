"""`python -m tests.bench.lake [CASE ...]`: CPU seconds of the lake's batches, beside Delta's own ways in the same run.

Comes in: landed files, as a gateway writes them. Measured is what a Spark task does with them (`apply_tables`), in this
process with all of its threads; Spark's planning of the job is not. The peer of changes is Delta's MERGE on a running
Spark session, by its JVM; that of inserts without a key are two plain appends by delta-rs, since a row goes into two
tables. A clock that moves a second with each batch says when changes have waited for long enough, so the figures of
`updates` have the merges that they cause. Into build/bench-lake.json.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import GSN
from pyspark.sql import SparkSession
from rich.table import Table as Printed

from spark_sink.ingest import table_writer
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.ingest.table_task import TaskSettings, TaskSize, apply_tables
from spark_sink.lake.delta_table import WRITER, append, open_table, schema_of
from spark_sink.lake.net_effect import COPY, ROW_HASH
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.tail import Waiting
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import row_count
from spark_sink.spark import start_session
from spark_sink.work import CURRENT, Result, TableId, split_rows
from tests.bench.report import console, write_figures
from tests.spark_sink.landing import Batch, Change, Chunk, Event, Table, Values, Writer, insert, table_id

COLUMNS = {
    "id": pa.int64(),
    "customer": pa.int64(),
    "quantity": pa.int32(),
    "price": pa.float64(),
    "at": pa.timestamp("us"),
    "status": pa.string(),
    "note": pa.string(),
}
WAITING = Waiting()
ORDERS, LINES = Table("orders", COLUMNS), Table("lines", COLUMNS, key=())
WORDS = pa.array(["new", "paid", "packed", "sent", "returned"])
#: of a table that is made without the sink, in one append
PART_ROWS = 2_000_000
FIRST_ROWS = 1_000
SMALL_TABLES = 100
WIDTHS, WIDE_ROWS = (50, 1000), 2_000
RUNS = 3
NO_LIMIT = TaskSize(rows=1 << 40, plain_bytes=1 << 60)


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU seconds, or what the case says; the ratio is ours by the peer's, of "times faster" the other way round."""

    case: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool


@dataclass
class Lake:
    """A landing, and the lake that batches make of it."""

    folder: Path
    clock: float = field(default_factory=time.time)
    recorded: dict[TableId, Recorded] = field(default_factory=dict)
    #: that the last batch took by the clock
    wall_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.writer = Writer(self.folder / "landing")
        self.log = LandingLog(str(self.folder / "landing"))
        self.address = str(self.folder / "lake")

    def batch(self, *batches: Batch, first: int = 0) -> float:
        """CPU seconds of a batch with one cut of these changes, and the entries before it from `first` on."""
        self.writer.cut(*batches)
        self.clock += 1
        settings = TaskSettings(self.log.url, self.address, frozenset(), NO_LIMIT, self.recorded, waiting=WAITING)
        entries = map(self.log.read_entry, range(first or self.writer.entry, self.writer.entry + 1))
        tables = split_rows(row for entry in entries for row in entry_rows(entry))[1]
        with patch.object(table_writer, "now_us", lambda: int(self.clock * 1e6)):
            began, started = time.process_time(), time.perf_counter()
            outcomes = list(apply_tables(settings, tables.items()))
            seconds, self.wall_seconds = time.process_time() - began, time.perf_counter() - started
        for outcome in outcomes:
            assert outcome.result is Result.APPLIED, outcome
            held = self.recorded.get(outcome.table, Recorded())
            self.recorded[outcome.table] = held.followed_by(outcome.changelog_version, outcome.current_version)
        return seconds

    def fill(self, table: Table, rows: int) -> None:
        """The table with so many rows, most of them written past the sink."""
        self.batch((table, [insert(**values(key)) for key in range(FIRST_ROWS)]))
        current = open_table(self.current(table))
        assert current is not None
        for first in range(FIRST_ROWS, rows, PART_ROWS):
            append(current, columns(first, min(rows, first + PART_ROWS), schema_of(current)), [])

    def current(self, table: Table) -> str:
        return f"{table_id(table).folder(self.address)}/{CURRENT}"


def values(key: int, version: int = 0) -> Values:
    at = 1_700_000_000_000_000 + key
    word = WORDS[(key + version) % len(WORDS)].as_py()
    return {"id": key, "customer": key * 7919 % 100_003, "quantity": version, "price": key / 7, "at": at} | {
        "status": word, "note": f"note of order {key * 7919 % 1_000_003:09d}"
    }  # fmt: skip


def columns(first: int, last: int, schema: pa.Schema) -> pa.Table:
    """The same of many keys."""
    keys = range(first, last)
    made = {
        "id": pa.array(keys),
        "customer": pa.array([key * 7919 % 100_003 for key in keys]),
        "quantity": pa.repeat(pa.scalar(0), len(keys)),
        "price": pa.array([key / 7 for key in keys]),
        "at": pa.array([1_700_000_000_000_000 + key for key in keys]).cast(pa.timestamp("us")),
        "status": WORDS.take(pa.array([key % len(WORDS) for key in keys])),
        "note": pa.array([f"note of order {key * 7919 % 1_000_003:09d}" for key in keys]),
        GSN: pa.repeat(pa.scalar(1), len(keys)),
        ROW_HASH: pa.array([b"%016d" % key for key in keys]),
        COPY: pa.repeat(pa.scalar(0), len(keys)),
    }
    arrays = [made.get(each.name, pa.nulls(len(keys), each.type)).cast(each.type) for each in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


class Spark:
    """Delta's own MERGE."""

    def __init__(self) -> None:
        self.session: SparkSession = start_session("local[2]")
        self.wall_seconds = 0.0
        self.jvm = next(each for each in psutil.Process().children(recursive=True) if "java" in each.name())

    def merge(self, folder: str, rows: list[Values]) -> float:
        """CPU seconds of the JVM to merge these rows by their key."""
        source = f"{folder}-changes"
        schema = schema_of(DeltaTable(folder))
        own = pa.schema([schema.field(name) for name in COLUMNS])
        write_deltalake(source, pa.Table.from_pylist([dict(row) for row in rows], schema=own), mode="overwrite")
        sets = ", ".join(f"t.{name} = s.{name}" for name in COLUMNS)
        statement = (
            f"MERGE INTO delta.`{folder}` t USING delta.`{source}` s ON t.id = s.id WHEN MATCHED THEN UPDATE SET {sets}"
        )
        before, started = self.jvm.cpu_times(), time.perf_counter()
        self.session.sql(statement)
        self.wall_seconds = time.perf_counter() - started
        after = self.jvm.cpu_times()
        return after.user + after.system - before.user - before.system


def updates(chosen: argparse.Namespace, spark: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """Ten random updates a batch, in the steady state: over as many batches as lie between two merges."""
    means = []
    for rows in (chosen.rows, *([chosen.many_rows] if chosen.many_rows else [])):
        lake = Lake(folder / f"updates-{rows}")
        lake.fill(ORDERS, rows)
        taken, batches, merges = 0.0, 0, 0
        while merges < 2:  # from the first merge to the second
            keys = random_keys(rows, 10, batches)
            version = lake.recorded[table_id(ORDERS)].current
            seconds = lake.batch((ORDERS, [changed(key, batches) for key in keys]))
            merges += version != lake.recorded[table_id(ORDERS)].current
            taken, batches = (taken + seconds, batches + 1) if merges else (0.0, 0)
        assert row_count(lake.address, table_id(ORDERS)) == rows
        means.append(taken / batches)
        runs = [
            spark().merge(lake.current(ORDERS), [values(key, 7) for key in random_keys(rows, 10, -run)])
            for run in range(1, RUNS + 1)
        ]
        peer = statistics.median(runs)
        name = f"ten updates into {rows:,} rows, {batches} batches"
        if len(means) == 1:
            yield Figure(name, means[0], peer, means[0] / peer, "0.3 CPU s", means[0] <= 0.3)
        else:
            more = f"2 times that of {chosen.rows:,} rows: {means[1] / means[0]:.2f}"
            yield Figure(name, means[1], peer, means[1] / peer, more, means[1] <= 2 * means[0])


def inserts(chosen: argparse.Namespace, _: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """Ten rows into a table without a key, beside two plain appends of them."""
    lake = Lake(folder / "inserts")
    lake.fill(LINES, chosen.rows)
    first = chosen.rows
    ours = []
    for number in range(chosen.batches):
        ours.append(lake.batch((LINES, [insert(**values(first + number * 10 + place)) for place in range(10)])))
    plain = DeltaTable(lake.current(LINES))
    rows = columns(first, first + 10, schema_of(plain))
    peers = []
    for _run in range(chosen.batches):
        began = time.process_time()
        for _table in range(2):
            write_deltalake(plain, rows, mode="append", writer_properties=WRITER)
        peers.append(time.process_time() - began)
    mean, peer = statistics.mean(ours), statistics.mean(peers)
    yield Figure(
        f"ten inserts without a key, {chosen.rows:,} rows", mean, peer, mean / peer, "3 times", mean <= 3 * peer
    )


def tables(chosen: argparse.Namespace, _: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """A batch with one update of each of a hundred small tables."""
    lake = Lake(folder / "tables")
    small = [Table(f"t{number}", COLUMNS) for number in range(SMALL_TABLES)]
    lake.batch(*((table, [insert(**values(key)) for key in range(100)]) for table in small))
    runs = [
        lake.batch(*((table, [changed(number, number)]) for table in small)) for number in range(chosen.batches // 4)
    ]
    mean = statistics.mean(runs)
    yield Figure(f"a batch of {SMALL_TABLES} small tables", mean, None, None, "1.5 CPU s", mean <= 1.5)


def changes(chosen: argparse.Namespace, spark: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """Many changes at once, evenly spread."""
    rows, count = chosen.change_rows, chosen.changes
    lake = Lake(folder / "changes")
    lake.fill(ORDERS, rows)
    keys = random_keys(rows, count, 1)
    ours = lake.batch((ORDERS, [changed(key, 3) for key in keys]))
    peer = spark().merge(lake.current(ORDERS), [values(key, 7) for key in keys])
    name, goal = f"{count:,} changes into {rows:,} rows", "5 times faster"
    yield Figure(name, ours, peer, peer / ours, goal, peer >= 5 * ours)
    ours, peer = lake.wall_seconds, spark().wall_seconds
    yield Figure(f"{name}, seconds by the clock", ours, peer, peer / ours, goal, peer >= 5 * ours)


def wide(chosen: argparse.Namespace, _: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """Ten updates a batch of tables with 50 and with 1,000 columns, by the bytes of their rows."""
    means = []
    for count in WIDTHS:
        lake = Lake(folder / f"wide-{count}")
        table = Table("wide", {"id": pa.int64()} | {f"c{number}": pa.int64() for number in range(1, count)})
        rows = [dict.fromkeys(table.columns, key * 7919) | {"id": key} for key in range(WIDE_ROWS)]
        lake.batch((table, [insert(**row) for row in rows]))
        runs = []
        for number in range(chosen.batches // 2):
            keys = random_keys(WIDE_ROWS, 10, number)
            after = [rows[key] | {"c1": number} for key in keys]
            pairs = zip(keys, after, strict=True)
            changes = [[("update_preimage", rows[key]), ("update_postimage", row)] for key, row in pairs]
            runs.append(lake.batch((table, changes)))
            for key, row in zip(keys, after, strict=True):
                rows[key] = row
        means.append(statistics.mean(runs) / count)
    ratio = means[1] / means[0]
    name = f"ten updates of {WIDE_ROWS:,} rows with {WIDTHS[1]:,} columns, a column; peer: with {WIDTHS[0]}"
    yield Figure(name, means[1], means[0], ratio, "5 times", ratio <= 5)


def dumped(chosen: argparse.Namespace, _: Callable[[], Spark], folder: Path) -> Iterator[Figure]:
    """Tables of few rows that begin with a dump, as one batch has them: per table."""
    lake = Lake(folder / "dumped")
    tables = [Table(f"d{number}", COLUMNS) for number in range(chosen.dumped)]
    began = [Event(table, "DUMP_STARTED", dump=table.name) for table in tables]
    lake.writer.cut(*began)
    above = lake.writer.last_gsns["acme", "shop"]
    chunks = [Chunk(table, [values(key) for key in range(10)], above, dump=table.name) for table in tables]
    lake.writer.cut(*chunks)
    ends = [Event(table, "DUMPED", dump=table.name, removes_rows_before_gsn=above - 1) for table in tables]
    first = lake.writer.entry - 1
    seconds = lake.batch(*ends, first=first) / len(tables)
    assert all(row_count(lake.address, table_id(table)) == 10 for table in tables)
    yield Figure(
        f"a table of {len(tables):,} that begin with a dump, in the sink",
        seconds,
        None,
        None,
        "0.03 CPU s",
        seconds <= 0.03,
    )


def changed(key: int, version: int) -> list[Change]:
    return [("update_preimage", values(key)), ("update_postimage", values(key, version))]


def random_keys(rows: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(rows), count)


CASES: dict[str, Callable[[argparse.Namespace, Callable[[], Spark], Path], Iterator[Figure]]] = {
    "updates": updates,
    "inserts": inserts,
    "tables": tables,
    "changes": changes,
    "wide": wide,
    "dumped": dumped,
}


@contextmanager
def running_spark() -> Iterator[Callable[[], Spark]]:
    """Started and warm once a case asks for it."""
    found: list[Spark] = []

    def get() -> Spark:
        if not found:
            found.append(Spark())
            with tempfile.TemporaryDirectory(prefix="menura-bench-") as folder:
                write_deltalake(folder, columns(0, 1000, pa.schema(list(COLUMNS.items()))))
                found[0].merge(folder, [values(1)])
        return found[0]

    try:
        yield get
    finally:
        for spark in found:
            spark.session.stop()


def show(figures: Sequence[Figure]) -> None:
    out = console()
    printed = Printed(title="CPU seconds of a batch in the lake")
    for heading in ("case", "ours", "peer", "ratio", "goal", "met"):
        printed.add_column(heading)
    for each in figures:
        numbers = ("-" if number is None else f"{number:.3f}" for number in (each.ours, each.peer, each.ratio))
        printed.add_row(each.case, *numbers, each.goal, "yes" if each.met else "no")
    out.print(printed)
    write_figures("bench-lake.json", figures, out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.lake", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all without")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--many-rows", type=int, default=0, help="a second, larger table of `updates` (20000000)")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--change-rows", type=int, default=2_000_000)
    parser.add_argument("--dumped", type=int, default=1_000, help="how many tables begin with a dump")
    chosen = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="menura-bench-") as name, running_spark() as spark:
        for case in chosen.cases or CASES:
            for figure in CASES[case](chosen, spark, Path(name)):
                figures.append(figure)
                console().print(f"{figure.case}: {figure.ours:.3f} s")
    show(figures)


if __name__ == "__main__":
    main()
