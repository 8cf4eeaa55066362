"""`python -m tests.bench.views [--rows N]`: what it costs that a view follows 10,000 changes of its tables.

The view joins N orders with N customers and 1,000 products; 7,000 orders and 2,900 customers change. CPU seconds of
one process: to the view's changelog, and from there to its rows as a reader opens them; once more as in a process that
has not read the view's stores yet, which large tables have. Beside it Spark SQL in the same run: the view's rows of
10,000 keys, told to it by a broadcast, and the whole view, both written to nowhere (CPU seconds of its JVM, the second
run of each). Into build/bench-views.json.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import psutil
import pyarrow as pa
from deltalake import write_deltalake
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, TRANSACTION_ID, UNREPRESENTABLE
from menura.instants import now_us
from menura.views.definition import InputName, ViewCut, ViewDefinition
from pyspark.sql import SparkSession

from spark_sink.lake.delta_table import (
    WRITER,
    Layout,
    append,
    commit_properties,
    create_table,
    open_table,
    progress_transactions,
)
from spark_sink.lake.tail import Waiting, tail_transactions
from spark_sink.landed.lake_schema import METADATA_TYPES
from spark_sink.reading import current_state_frame, open_rows
from spark_sink.spark import start_session
from spark_sink.views.inputs import InputAt
from spark_sink.views.maintain import ViewWork, follow, view_table_id
from spark_sink.views.store import crc32_of
from spark_sink.views.store_folders import StoreSettings
from spark_sink.work import CHANGELOG, CURRENT, TableId
from tests.servers import ROOT

ROUNDS = 3
PRODUCTS = 1000
WAITS = Waiting(3600, -1, most_rows=10_000_000, part_of_table=1e9)
SQL = (
    "SELECT o.id, o.qty, o.total, c.name, c.city, p.title FROM shop.app.orders o"
    " JOIN shop.app.customers c ON c.id = o.customer LEFT JOIN shop.app.products p ON p.id = o.product WHERE o.qty > 0"
)
#: of up to a million rows; of more twice that
CHANGELOG_GOAL, READABLE_GOAL, GOAL_ROWS = 0.6, 2.0, 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU seconds."""

    case: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool


@dataclass(slots=True)
class Source:
    """A table of the lake, written as the sink writes it."""

    lake: str
    name: str
    columns: pa.Schema
    make: Callable[[random.Random, list[int]], dict[str, list[object]]]
    rows: int
    gsn: int = 0
    first_gsn: int = 0
    version: int = 1

    @property
    def table(self) -> TableId:
        return TableId("acme", "shop", "app", self.name)

    def folder(self, kind: str) -> str:
        return f"{self.table.folder(self.lake)}/{kind}"

    def load(self, choose: random.Random) -> None:
        """The rows of before, in the current state; the changelog has none of them any more."""
        own = [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string())]
        layout = Layout("bench", tuple(self.columns.names), ("id",))
        current = create_table(
            self.folder(CURRENT), pa.schema([*self.columns, *own, pa.field(GSN, pa.int64())]), layout
        )
        facts = [pa.field(name, type_) for name, type_ in METADATA_TYPES.items()]
        changelog = create_table(self.folder(CHANGELOG), pa.schema([*facts, *self.columns, *own]), layout)
        for first in range(0, self.rows, 250_000):
            keys = list(range(first, min(first + 250_000, self.rows)))
            values = self.make(choose, keys)
            rows = pa.table([pa.array(values[field.name], field.type) for field in self.columns], schema=self.columns)
            numbers = pa.array([key + 1 for key in keys], pa.int64())
            nulls = pa.nulls(len(keys), pa.string())
            whole = rows.append_column(UNREPRESENTABLE, nulls).append_column(ABSENT, nulls).append_column(GSN, numbers)
            write_deltalake(current, whole, mode="append", writer_properties=WRITER)
        self.gsn = self.first_gsn = self.rows
        said = progress_transactions(self.table.application, 1, self.gsn)
        for delta in (current, changelog):
            write_deltalake(
                delta,
                pa.schema(delta.schema()).empty_table(),
                mode="append",
                commit_properties=commit_properties(*said),
            )

    def change(self, choose: random.Random, count: int, before: dict[int, dict[str, object]]) -> None:
        """Updates of random rows, which wait in the changelog."""
        keys = sorted(choose.sample(range(self.rows), count))
        self.version += 1
        old = [before[key] for key in keys]
        made = self.make(choose, keys)
        new = [{name: made[name][place] for name in self.columns.names} for place in range(count)]
        rows = []
        for place, (was, is_) in enumerate(zip(old, new, strict=True)):
            number = self.gsn + 1 + place
            rows += [
                {**was, CHANGE_TYPE: "update_preimage", GSN: number},
                {**is_, CHANGE_TYPE: "update_postimage", GSN: number},
            ]
            before[keys[place]] = is_
        self.gsn += count
        changelog = open_table(self.folder(CHANGELOG))
        assert changelog is not None
        facts = {TRANSACTION_ID: self.version, "_commit_timestamp_us": 0, "_position": ""}
        table = pa.Table.from_pylist([{**facts, **row} for row in rows], schema=pa.schema(changelog.schema()))
        said = tail_transactions(self.table.application, self.version, self.gsn, self.first_gsn, 1)
        append(changelog, table, [*said, *progress_transactions(self.table.application, self.version, self.gsn)])

    def at(self) -> InputAt:
        versions = [open_table(self.folder(kind)) for kind in (CHANGELOG, CURRENT)]
        return InputAt(InputName("shop", "app", self.name), self.table, *(each.version() for each in versions if each))


def sources(lake: str, rows: int) -> list[Source]:
    text, number = pa.string(), pa.int64()

    def orders(choose: random.Random, keys: list[int]) -> dict[str, list[object]]:
        return {
            "id": list(keys),
            "customer": [choose.randrange(rows) for _ in keys],
            "product": [choose.randrange(PRODUCTS) for _ in keys],
            "qty": [choose.randrange(9) for _ in keys],
            "total": [choose.randrange(100_000) for _ in keys],
        }

    def customers(choose: random.Random, keys: list[int]) -> dict[str, list[object]]:
        return {
            "id": list(keys),
            "name": [f"name {choose.randrange(10**6)}" for _ in keys],
            "city": [f"city {choose.randrange(1000)}" for _ in keys],
        }

    def products(choose: random.Random, keys: list[int]) -> dict[str, list[object]]:
        return {"id": list(keys), "title": [f"title {choose.randrange(10**6)}" for _ in keys]}

    of_orders = pa.schema([(name, number) for name in ("id", "customer", "product", "qty", "total")])
    return [
        Source(lake, "orders", of_orders, orders, rows),
        Source(lake, "customers", pa.schema([("id", number), ("name", text), ("city", text)]), customers, rows),
        Source(lake, "products", pa.schema([("id", number), ("title", text)]), products, PRODUCTS),
    ]


class Held(dict[int, dict[str, object]]):
    """Rows of a table as they were last, read from the lake when they are first asked for."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        rows = open_rows(source.lake, source.table)
        self._rows = pa.concat_tables(list(rows.tables(source.columns.names))).sort_by("id")

    def __missing__(self, key: int) -> dict[str, object]:
        (found,) = self._rows.slice(key, 1).to_pylist()
        return found


def cpu_of_jvm() -> float:
    """Of all processes below this one."""
    return sum(sum(each.cpu_times()[:2]) for each in psutil.Process().children(recursive=True))


def measured(task: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    task()
    return clock() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-views", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--without-stores", action="store_true", help="scan tables of any size")
    chosen = parser.parse_args()
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="menura-bench-views-", dir=os.environ.get("MENURA_BENCH_FOLDER")) as folder:
        lake = f"{folder}/lake"
        tables = sources(lake, chosen.rows)
        for each in tables:
            each.load(choose)
        held = [Held(each) for each in tables]
        definition = ViewDefinition("acme", "bench", SQL)
        stores = None if chosen.without_stores else StoreSettings(f"{folder}/stores")

        def turn(cut: int) -> object:
            work = ViewWork(definition, tuple(each.at() for each in tables), (ViewCut("shop", cut, 0),), now_us())
            return follow(lake, work, WAITS, stores)

        built = measured(lambda: turn(1), time.process_time)
        logged, readable = [], []
        for number in range(ROUNDS + 1):
            for each, count, rows in zip(tables, (7000, 2900, 0), held, strict=True):
                if count:
                    each.change(choose, count, rows)
            if number == ROUNDS:
                crc32_of.cache_clear()
            logged.append(measured(partial(turn, number + 2), time.process_time))
            readable.append(measured(lambda: open_rows(lake, view_table_id("acme", "bench")), time.process_time))
        ours, then = median(logged[:ROUNDS]), median(readable[:ROUNDS])
        times = 1 if chosen.rows <= GOAL_ROWS else 2
        peers: dict[str, float | None] = {"incremental": None, "full": None}
        if not chosen.without_spark:
            peers = dict(spark(lake, tables))
        figures = [
            Figure(
                "to the view's changelog",
                ours,
                peers["incremental"],
                _ratio(ours, peers["incremental"]),
                f"<= {times * CHANGELOG_GOAL}",
                ours <= times * CHANGELOG_GOAL,
            ),
            Figure(
                "to readable",
                ours + then,
                peers["full"],
                _ratio(ours + then, peers["full"]),
                f"<= {times * READABLE_GOAL}",
                ours + then <= times * READABLE_GOAL,
            ),
            Figure("to the view's changelog, first of a process", logged[ROUNDS], None, None, "", True),
            Figure("built whole, with its stores", built, peers["full"], _ratio(built, peers["full"]), "", True),
        ]
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/bench-views.json").write_text(json.dumps([asdict(each) for each in figures], indent=1) + "\n")
    for each in figures:
        sys.stdout.write(
            f"{each.case}: {each.ours:.2f} CPU s, Spark SQL {each.peer or 0:.2f}, goal {each.goal or 'none'}\n"
        )
    rounds = [[round(each, 2) for each in times] for times in (logged, readable)]
    sys.stdout.write(f"of {chosen.rows} rows; rounds {rounds}\n")
    return 0 if all(each.met for each in figures) else 1


def _ratio(ours: float, peer: float | None) -> float | None:
    return None if peer is None else ours / peer


def spark(lake: str, tables: list[Source]) -> dict[str, float]:
    """CPU seconds of Spark SQL, the second run of each."""
    session: SparkSession = start_session("local[2]")
    for each in tables:
        current_state_frame(session, lake, each.table).createOrReplaceTempView(each.name)
    text = SQL.replace("shop.app.", "")
    changed = random.Random(2).sample(range(tables[0].rows), 10_000)
    session.createDataFrame([(key,) for key in changed], "id long").createOrReplaceTempView("keys")
    incremental = f"SELECT /*+ BROADCAST(k) */ v.* FROM ({text}) v JOIN keys k ON k.id = v.id"
    found = {}
    for name, query in (("incremental", incremental), ("full", text)):
        runs = [
            measured(lambda q=query: session.sql(q).write.format("noop").mode("overwrite").save(), cpu_of_jvm)  # type: ignore[misc]
            for _ in range(2)
        ]
        found[name] = runs[-1]
    session.stop()
    return found


if __name__ == "__main__":
    sys.exit(main())
