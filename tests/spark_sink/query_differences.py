"""`python -m tests.spark_sink.query_differences`: random queries of views on a schedule, compiled and by Spark SQL.

A query is compiled as a sink compiles it, and computed by the views' engine; Spark SQL computes the text itself. Rows
must be the same, and decimals of one type. A query that one of both can't compute for a value has no rows to be
compared: it is counted.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from menura.views.definition import ViewRefused
from menura.views.query_plan import engine_name, plan_query
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink.errors import ViewNotComputed
from spark_sink.spark import start_session
from spark_sink.views.engine import engine
from tests.spark_sink.generated_queries import Generated
from tests.spark_sink.odd_values import NAME, comparable, odd_rows, shape_of

IN_SPARK = "odd"
#: queries over the same rows
OF_ROWS = 50


class Both:
    """A table that both know; `found` says how often queries came to what."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self.found: Counter[str] = Counter()

    def use(self, rows: pa.Table) -> None:
        """Rows that queries are over, as {odd}."""
        self._rows = rows
        path = self._folder / f"{len(list(self._folder.iterdir()))}.parquet"
        pq.write_table(rows, path)
        self._session.read.parquet(str(path)).createOrReplaceTempView(IN_SPARK)

    def difference(self, query: str, key: Sequence[str]) -> str:
        """What differs; '': nothing, or the query is refused, or can't be computed, which is no silent difference."""
        text = f"SCHEDULE EVERY 1 HOUR KEY ({', '.join(key)}) AS " if key else "SCHEDULE EVERY 1 HOUR AS "
        try:
            plan = plan_query(text + query.format(odd=NAME), {NAME: shape_of(self._rows)})
        except ViewRefused:
            return self._count("refused")
        with engine() as sql:
            sql.put(engine_name(0), self._rows)
            try:
                ours: pa.Table | None = sql.table(plan.sql)
            except ViewNotComputed:
                ours = None
        try:
            theirs = self._session.sql(query.format(odd=IN_SPARK)).toArrow()
        except (PySparkException, Py4JJavaError):  # the latter where several tasks fail
            return self._count("not computed by Spark")
        if ours is None:
            return self._count("not computed by the engine alone")
        if self._decimals(ours) != self._decimals(theirs):
            return self._count(f"types {ours.schema.types} instead of {theirs.schema.types}")
        mine, right = Counter(comparable(ours)), Counter(comparable(theirs))
        others = [*(mine - right), "instead of", *(right - mine)]
        return self._count(f"rows {others}") if mine != right else self._count("")

    @staticmethod
    def _decimals(rows: pa.Table) -> list[str]:
        return [str(type_) if pa.types.is_decimal(type_) else "" for type_ in rows.schema.types]

    def _count(self, found: str) -> str:
        kind = found.split(" ", maxsplit=1)[0] if found.startswith(("types", "rows")) else found
        self.found[kind or "same"] += 1
        return found if kind in ("types", "rows") else ""


def key_of(query: str) -> list[str]:
    """Of a generated query, whose floats can be no key."""
    if query.startswith("SELECT o.id, q.id AS q, r.id"):
        return ["id", "q", "r"]
    if "SELECT o.id, q.id" in query:
        return ["id", "q"]
    if " AS g1, " in query:
        return ["g0", "g1"]
    if " AS g0, " in query:
        return ["g0"]
    return ["id"] if query.startswith(("SELECT o.id", "WITH")) else []


def differences(both: Both, seeds: Sequence[int]) -> Iterator[str]:
    for place, seed in enumerate(seeds):
        if place % OF_ROWS == 0:
            both.use(odd_rows(seed))
        query = Generated(seed).query()
        found = both.difference(query, key_of(query))
        if found:
            yield f"seed {seed}: {found}: {query}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1, help="the first query's seed")
    arguments = parser.parse_args()
    session = start_session("local[2]", {"spark.sql.shuffle.partitions": "1"})
    session.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="menura-queries-") as folder:
        both = Both(session, Path(folder))
        wrong = 0
        for each in differences(both, range(arguments.first, arguments.first + arguments.queries)):
            wrong += 1
            sys.stdout.write(f"{each}\n")
            sys.stdout.flush()
    session.stop()
    sys.stdout.write(f"{arguments.queries} queries: {dict(both.found)}\n")
    return 1 if wrong or not both.found["same"] else 0


if __name__ == "__main__":
    sys.exit(main())
