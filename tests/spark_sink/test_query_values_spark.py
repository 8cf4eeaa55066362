"""What the compiler lets through of queries on a schedule is what Spark SQL gives, for values at the ends of types."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_sink.odd_values import odd_rows
from tests.spark_sink.query_differences import Both, differences

pytestmark = [pytest.mark.spark, pytest.mark.long]

PARTITIONS = "spark.sql.shuffle.partitions"
#: seeds of random queries; `make view-queries` has more
SEEDS = range(20_000, 20_120)

CASTS = [
    "CAST(o.born AS STRING)", "CAST(to_date(o.born) AS STRING)", "CAST(DATE(o.at) AS STRING)",
    "TRY_CAST(o.died AS STRING)",
    "CAST(CAST(o.at AS DATE) AS STRING)", "CAST(to_date(o.at) AS STRING)", "CAST(o.large AS STRING)", "to_date(o.at)",
    "year(to_date(o.at))", "CAST(o.yes AS BIGINT)", "CAST(o.rough AS DOUBLE)", "CAST(o.large AS DOUBLE)",
    "CAST(o.large AS DECIMAL(20,0))", "CAST(o.price AS DECIMAL(12,4))", "CAST(DATE '0001-01-01' AS STRING)",
]  # fmt: skip
OFFSETS = [
    "lag({}, 1, 0) OVER (ORDER BY o.id)", "lead({}, 2, -1) OVER (ORDER BY o.id)", "lag({}) OVER (ORDER BY o.id)",
    "lag({}, 100, NULL) OVER (ORDER BY o.id)", "lag({0}, 1, {0}) OVER (PARTITION BY o.yes ORDER BY o.id)",
]  # fmt: skip
TYPES = [
    "coalesce(o.price, 0)", "coalesce(o.few, 0.5)", "CASE WHEN o.yes THEN 1 ELSE 0.5 END",
    "coalesce(year(o.born), 0.5)",
    "year(o.born) + 1.5", "length(o.word) * 0.5", "o.price * o.price", "o.price * o.price * o.price", "o.price + 0",
    "-(1) + 1.5", "-1 + 1.5", "abs(-1) + 1.5", "nullif(1, 2) + 1.5", "coalesce(1, 2) + 1.5", "2147483648 + 0.5",
    "coalesce(2147483648, 0.5)", "-2147483648 * 0.5", "coalesce(-2147483648, 0.5)",
    "row_number() OVER (ORDER BY o.id) + 1.5",
    "-o.price", "abs(o.wide)", "o.price IN (1, 0.5)", "o.price BETWEEN 0 AND 1.234", "nullif(o.few, 1.0)",
    "o.word LIKE 'a%'", "o.word NOT LIKE 'a%'", "NOT o.word LIKE '_'", "o.few NOT IN (1, 2)",
    "o.few NOT BETWEEN 1 AND 2",
    "o.yes = (o.few < o.small)", "(o.yes = (o.few > 1)) BETWEEN false AND true", "o.yes <> (o.yes IN (false, NULL))",
    "o.yes = (o.few < o.small) IS NULL", "o.yes <=> ((o.few < o.small))", "(o.few < o.small) <=> o.yes",
    "5L + 0.5", "coalesce(5L, 0.5)", "o.price = 5L", "o.price * 5L", "-7L + 0.25", "-2147483648L + 0.5",
    "0.5BD * o.price", "3BD + o.few", ".25 + 5.", "5. * o.few", "1e3 + o.real", "1.5D * o.real", "0.1D", "1e-320",
    "5::BIGINT + 0.5",
    "-(-(5)) + 1.5", "+o.few + 0.5", "o.yes <=> (o.few < 1)", "o.yes <=> (NOT o.no) AND o.yes",
    "o.yes <=> (o.few IS NULL) OR o.no", "CASE WHEN o.yes <=> (o.few IN (1, 2)) THEN 1 END",
    "count(*) OVER () + 0.5", "first_value(1) OVER (ORDER BY o.id) + 0.5", "min(1) OVER (ORDER BY o.id) + 0.5",
]  # fmt: skip
QUERIES = [
    "SELECT o.price AS v FROM {odd} o UNION ALL SELECT 0 AS v FROM {odd} o",
    "SELECT 1 AS v FROM {odd} o UNION ALL SELECT 0.5 AS v FROM {odd} o",
    "SELECT year(o.born) AS v FROM {odd} o UNION SELECT o.price AS v FROM {odd} o",
    "SELECT q.n + 0.5 AS v FROM (SELECT year(o.born) AS n FROM {odd} o) q",
    "WITH w AS (SELECT 1 AS n FROM {odd} o) SELECT coalesce(w.n, 0.5) AS v FROM w",
    "SELECT o.id, (SELECT max(1) FROM {odd} q WHERE q.few = o.few) + 0.5 AS v FROM {odd} o",
    "SELECT o.id, o.small AS few, o.few + 1 AS v FROM {odd} o WHERE o.few < 100 ORDER BY o.few + 1, o.id LIMIT 5",
    "SELECT o.id, (SELECT count(*) AS few FROM {odd} q HAVING o.few > 1) AS v FROM {odd} o",
    "SELECT o.id, o.word FROM {odd} o WHERE o.few NOT IN (SELECT q.small FROM {odd} q WHERE q.small > 0) OR o.yes",
    "SELECT o.id, CASE WHEN o.few IN (SELECT q.large FROM {odd} q) THEN 1 WHEN NOT o.few IN (SELECT q.small"
    " FROM {odd} q WHERE q.yes) THEN 2 ELSE 3 END AS v FROM {odd} o",
    "SELECT o.id, q.id AS q FROM {odd} o JOIN {odd} q ON q.id = o.id AND o.few NOT IN (SELECT p.small FROM {odd} p"
    " WHERE p.small > 1)",
    "SELECT o.yes, count(*) AS n FROM {odd} o GROUP BY o.yes HAVING max(o.few) NOT IN (SELECT q.small FROM {odd} q"
    " WHERE q.small IS NOT NULL)",
]  # fmt: skip


@pytest.fixture
def both(session: SparkSession, tmp_path: Path) -> Iterator[Both]:
    before = session.conf.get(PARTITIONS)
    session.conf.set(PARTITIONS, "1")
    found = Both(session, tmp_path)
    found.use(odd_rows(1))
    yield found
    session.conf.set(PARTITIONS, before)


@pytest.mark.parametrize("expressions", [CASTS, TYPES], ids=["casts", "types"])
def test_expressions_when_values_are_odd_then_they_have_sparks_values_and_types(
    both: Both, expressions: list[str]
) -> None:
    columns = ", ".join(f"{each} AS c{place}" for place, each in enumerate(expressions))
    assert both.difference(f"SELECT o.id, {columns} FROM {{odd}} o", ["id"]) == ""
    assert both.found == {"same": 1}


def test_values_before_and_behind_when_they_have_a_default_then_they_have_sparks_type(both: Both) -> None:
    columns = [each.format(of) for each in OFFSETS for of in ("o.price", "o.few", "o.wide", "year(o.born)")]
    chosen = ", ".join(f"{each} AS c{place}" for place, each in enumerate(columns))
    assert both.difference(f"SELECT o.id, {chosen} FROM {{odd}} o", ["id"]) == ""
    assert both.found == {"same": 1}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_when_types_meet_and_null_is_looked_for_then_they_have_sparks_rows(both: Both, query: str) -> None:
    assert both.difference(query, ["id"] if "o.id" in query and " q.id" not in query else []) == ""
    assert both.found == {"same": 1}


def test_random_queries_when_both_compute_them_then_they_have_sparks_rows(both: Both) -> None:
    assert list(differences(both, SEEDS)) == []
    assert both.found["same"] > len(SEEDS) / 4
