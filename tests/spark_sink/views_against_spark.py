"""`make views`: generated views of many worlds, equal to Spark SQL's full query after each batch.

A world's views follow all of its batches first. Its tables' rows and its views' are kept after each batch, with the
batch's number; then Spark runs each view's text once, over all batches, by that number.
"""

import argparse
import logging
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_sink.lake.tail import Waiting
from spark_sink.spark import start_session
from spark_sink.views.division import ALONE, Dividing
from tests.spark_sink.view_model import Text, World, in_lake, texts, values

VIEWS_OF_WORLD = 8
WAITS = Waiting(3600, -1, part_of_table=1e9)
BATCH = "batch"
#: a view's rows after a batch
Rows = Counter[tuple[object, ...]]


def follow(world: World, batches: int) -> tuple[dict[str, pa.Table], dict[str, Rows]]:
    """The tables' rows, and each view's, each with the number of its batch."""
    tables: dict[str, list[pa.Table]] = defaultdict(list)
    held: dict[str, Rows] = defaultdict(Counter)
    for batch in range(batches):
        world.step(12 if batch else 30)
        waiting = [state for state in world.sink.states() if state.state != "following"]
        assert not waiting, waiting
        for name, rows in world.tables().items():
            tables[name].append(rows.append_column(BATCH, pa.array([batch] * rows.num_rows, pa.int32())))
        for name in world.views:
            held[name].update((batch, *row) for row in world.held(name))
    # in one chunk: Spark takes no rows from behind an empty one
    return {name: pa.concat_tables(found).combine_chunks() for name, found in tables.items()}, held


def differing(
    session: SparkSession, views: dict[str, Text], tables: dict[str, pa.Table], held: dict[str, Rows]
) -> list[str]:
    """The views' texts with the batches after which Spark SQL has other rows."""
    for name, rows in tables.items():
        session.createDataFrame(rows).createOrReplaceTempView(name)
    wrong = []
    for name, text in views.items():
        rows = session.sql(text(lambda table: table, BATCH)).toArrow().to_pylist()
        expected = Counter(map(values, rows))
        others = (expected - held[name]) + (held[name] - expected)
        if others:
            wrong.append(f"after batches {sorted({str(row[0]) for row in others}, key=int)}: {text(in_lake)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--first", type=int, default=1, help="the first world's seed")
    parser.add_argument("--without-stores", action="store_true", help="views scan their tables")
    parser.add_argument("--divided", action="store_true", help="whole turns are divided, whatever their size")
    arguments = parser.parse_args()
    dividing = Dividing(3, least_rows=0, least_gain=0) if arguments.divided else ALONE
    logging.getLogger("menura.sink").setLevel(logging.ERROR)
    session = start_session("local[2]")
    worlds = -(-arguments.views // VIEWS_OF_WORLD)
    wrong: list[str] = []
    for seed in range(arguments.first, arguments.first + worlds):
        with tempfile.TemporaryDirectory(prefix="menura-views-") as folder:
            waiting = WAITS if seed % 2 else Waiting(0)
            world = World(Path(folder), seed, waiting, stores=not arguments.without_stores, dividing=dividing)
            views = texts(seed, VIEWS_OF_WORLD)
            world.want(**views)
            found = differing(session, views, *follow(world, arguments.batches))
        wrong += found
        sys.stdout.write("".join(f"differs: {each}\n" for each in found))
        sys.stdout.write(f"seed {seed}: {VIEWS_OF_WORLD} views, {arguments.batches} batches, {len(found)} differ\n")
        sys.stdout.flush()
    session.stop()
    count = worlds * VIEWS_OF_WORLD
    sys.stdout.write(f"{count * arguments.batches} comparisons of {count} views, {len(wrong)} differ\n")
    return 1 if wrong or not worlds * arguments.batches else 0


if __name__ == "__main__":
    sys.exit(main())
