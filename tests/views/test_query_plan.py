"""Queries that are recomputed on a schedule: what the engine is given, and what never is."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from menura.views.definition import InputName, ViewDefinition, ViewRefused
from menura.views.explain import explain_query
from menura.views.query_plan import QueryPlan, plan_query
from menura.views.query_scope import QueryScope
from menura.views.reads import in_order, inputs_of
from menura.views.scheduled import every_seconds_of, is_scheduled, read_scheduled, scheduled
from menura.views.terms import Term
from sqlglot import exp

from tests.spark_sink.scheduled_views import TEXTS
from tests.spark_sink.view_model import in_lake
from tests.views.test_plan import ORDERS, PEOPLE, SHAPES

EVERY = "SCHEDULE EVERY 1 HOUR AS "
#: all that stands in the engine's text outside of quotes
WORDS = """
    select distinct from as where group by having order limit union intersect except all with on join inner left right
    full cross semi anti and or not is null true false in between like exists case when then else end over partition
    rows range preceding following unbounded current row asc desc nulls first last cast bigint double varchar boolean
    date timestamp decimal hugeint count sum min max row_number rank dense_rank lag lead first_value last_value
    coalesce nullif abs length year month day replace lpad format
"""


def query(sql: str, begin: str = EVERY) -> QueryPlan:
    text = begin + sql
    return plan_query(text, {name: SHAPES[name] for name in inputs_of(text) if name in SHAPES})


def words_of(sql: str) -> set[str]:
    """Of the engine's text, without what stands in quotes."""
    rest = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", " ", sql)
    assert "'" not in rest and '"' not in rest and ";" not in rest and "--" not in rest and "/*" not in rest
    return set(re.findall(r"[a-z_]+", rest.lower()))


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (
            "SELECT o.note FROM shop.app.orders o RIGHT JOIN crm.app.people p ON p.id < o.person",
            'SELECT CAST("o"."note" AS VARCHAR) AS "note" FROM "t1" AS "o" RIGHT JOIN "t0" AS "p"'
            ' ON ("p"."id" < "o"."person")',
        ),
        (
            "WITH g AS (SELECT DISTINCT p.name FROM crm.app.people p) SELECT g.name FROM g ORDER BY name DESC LIMIT 3",
            'WITH "w0" AS (SELECT DISTINCT CAST("p"."name" AS VARCHAR) AS "name" FROM "t0" AS "p") SELECT * FROM'
            ' (SELECT CAST("g"."name" AS VARCHAR) AS "name" FROM "w0" AS "g") AS "~q" ORDER BY "name" DESC NULLS LAST'
            " LIMIT 3",
        ),
    ],
)
def test_a_query_when_it_is_planned_then_the_engine_is_given_its_own_names_of_tables(sql: str, text: str) -> None:
    assert query(sql).sql == text


def test_queries_when_they_are_planned_then_their_texts_have_words_of_a_list_alone() -> None:
    names = """`"; DROP TABLE t0; --` """
    hostile = (
        f"SELECT z.{names} AS {names}, z.b FROM (SELECT o.note AS {names}, 'it\\'s /* */ -- \\'; COPY ${{env:X}}' AS b"
    )
    hostile += " FROM shop.app.orders o) z"
    with pytest.raises(ViewRefused, match="can't be called"):
        query(hostile)
    within = f"SELECT count(z.b) AS n FROM (SELECT 1 AS one, y.{names} AS b FROM ({hostile}) y) z"
    dates = "SELECT CAST(o.day AS STRING) AS day FROM shop.app.orders o"
    for sql in [within, dates, *(text(in_lake) for text in TEXTS.values())]:
        assert words_of(re.sub(r"\b[tw]\d+\b", "", query(sql).sql)) <= set(WORDS.split()), sql


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT reflect('java.lang.System', 'exit', 1) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT java_method('java.lang.System', 'exit', 1) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT o.reflect('a') AS x FROM shop.app.orders o", "is not among"),
        ("SELECT input_file_name() AS x FROM shop.app.orders o", "is not among"),
        ("SELECT getenv('HOME') AS x FROM shop.app.orders o", "is not among"),
        ("SELECT current_setting('x') AS x FROM shop.app.orders o", "is not among"),
        ("SELECT repeat(o.note, 1000000000) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT lpad(o.note, 1000000000, 'x') AS x FROM shop.app.orders o", "is not among"),
        ("SELECT space(1000000000) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT explode(sequence(1, 1000000000)) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT collect_list(o.note) AS x FROM shop.app.orders o", "is not among"),
        ("SELECT TRANSFORM(o.note) USING 'cat' AS x FROM shop.app.orders o", ""),
        ("SELECT x FROM parquet.`/etc/passwd`", "SOURCE.DATABASE.TABLE"),
        ("SELECT x FROM read_csv('/etc/passwd')", "by their names alone"),
        ("SELECT x FROM read_parquet('s3://lake/other') o", "by their names alone"),
        ("SELECT x FROM glob('/*')", ""),
        ("SELECT x FROM range(1000000000)", "by their names alone"),
        ("SELECT x FROM IDENTIFIER('a')", "by their names alone"),
        ("SELECT o.id, (SELECT max(y) FROM read_files('/x')) AS m FROM shop.app.orders o", "by their names alone"),
        ("SELECT x.a FROM other.app.orders x", "other.app.orders is not known"),
        ("SELECT x.a FROM duckdb_settings x", "duckdb_settings is not known"),
        ("SELECT x.a FROM t0 x JOIN shop.app.orders o ON x.a = o.id", "t0 is not known"),
        ("SELECT x.a FROM w0 x JOIN shop.app.orders o ON x.a = o.id", "w0 is not known"),
        ("SELECT x.a FROM shop.app.orders x VERSION AS OF 3", ""),
        ("SELECT o.id FROM shop.app.orders o TABLESAMPLE (1 ROWS)", ""),
        ("SELECT /*+ BROADCAST(o) */ o.id FROM shop.app.orders o", "HINT"),
        ("SELECT o.id FROM shop.app.orders o LATERAL VIEW explode(o.note) t AS z", "LATERALS"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.id = :y", "is not among"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.id = ?", "is not among"),
        ("WITH RECURSIVE r AS (SELECT o.id FROM shop.app.orders o UNION ALL SELECT r.id + 1 FROM r) SELECT r.id FROM r",
         "RECURSIVE"),
        ("WITH r AS (SELECT r.id + 1 AS id FROM r) SELECT r.id FROM r JOIN crm.app.people o ON o.id = r.id", "r is"),
        ("DROP TABLE shop.app.orders", "one query"),
        ("INSERT INTO a SELECT o.id FROM shop.app.orders o", "one query"),
        ("COPY shop.app.orders TO '/tmp/x'", ""),
        ("ATTACH '/tmp/x'", ""),
        ("PRAGMA version", ""),
        ("SET memory_limit = '1TB'", "one query"),
        ("CREATE TABLE x AS SELECT o.id FROM shop.app.orders o", "one query"),
        ("SELECT o.id FROM shop.app.orders o; DROP TABLE a", "one SELECT"),
        ("SELECT o.id INTO x FROM shop.app.orders o", ""),
        ("SELECT 1 AS x", "reads a table"),
        ("SELECT * FROM shop.app.orders o", "one by one"),
        ("SELECT o.id + 1 FROM shop.app.orders o", "needs a name"),
        ("SELECT o.id, o.note AS ID FROM shop.app.orders o", "one name"),
        ("SELECT o.id AS _gsn FROM shop.app.orders o", "can't be called"),
        ("SELECT o.id FROM shop.app.orders o JOIN crm.app.people p USING (id)", "USING"),
        ("SELECT o.id FROM shop.app.orders o NATURAL JOIN crm.app.people p", "METHOD"),
        ("SELECT o.id FROM shop.app.orders o, crm.app.people p FULL JOIN crm.app.people c ON c.id = p.id", "CROSS"),
        ("SELECT o.id FROM shop.app.orders o ORDER BY o.id", "ORDER BY stands with LIMIT"),
        ("SELECT o.id FROM shop.app.orders o LIMIT 3", "LIMIT needs ORDER BY"),
        (f"SELECT o.id FROM shop.app.orders o ORDER BY o.id LIMIT {'9' * 5_000}", "LIMIT is at most"),
        (
            "SELECT o.id, sum(o.qty) OVER (ORDER BY o.id ROWS BETWEEN "
            f"{'9' * 5_000} PRECEDING AND CURRENT ROW) AS s FROM shop.app.orders o",
            "a window reaches at most",
        ),
        ("SELECT o.id FROM shop.app.orders o ORDER BY 1 LIMIT 3", "names columns"),
        ("SELECT o.id, 1 AS one FROM shop.app.orders o ORDER BY 1 DESC LIMIT 2", "not their places"),
        ("SELECT o.id, 1 AS one FROM shop.app.orders o ORDER BY ((1)) LIMIT 2", "not their places"),
        ("SELECT o.id, -1 AS one FROM shop.app.orders o ORDER BY -1 LIMIT 2", "not their places"),
        ("SELECT o.id FROM shop.app.orders o UNION SELECT 1 FROM shop.app.orders o ORDER BY 1 LIMIT 2",
         "not their places"),
        ("SELECT o.note, 1 AS one FROM shop.app.orders o GROUP BY (1)", "not their places"),
        ("SELECT o.id, o.person AS qty, qty + 1 AS v FROM shop.app.orders o ORDER BY qty + 1 LIMIT 5", "own column"),
        ("SELECT o.id, o.person AS qty, -qty AS v FROM shop.app.orders o ORDER BY (-qty) LIMIT 5", "own column"),
        ("SELECT p.id, (SELECT count(*) AS name FROM shop.app.orders o HAVING name IS NOT NULL) AS n"
         " FROM crm.app.people p", "this alias"),
        ("SELECT p.id, (SELECT o.qty AS name FROM shop.app.orders o ORDER BY name || 'a' LIMIT 1) AS n"
         " FROM crm.app.people p", "this alias"),
        ("SELECT p.id FROM crm.app.people p WHERE EXISTS (SELECT o.qty AS name, name || 'a' AS x"
         " FROM shop.app.orders o)", "this alias"),
        ("SELECT o.id FROM shop.app.orders o WHERE sum(o.qty) > 1", "aggregate stands"),
        ("SELECT o.id, sum(o.qty) AS s FROM shop.app.orders o GROUP BY o.note", "neither grouped"),
        ("SELECT o.note, (SELECT max(p.id) FROM crm.app.people p WHERE p.id = o.id) AS m, count(*) AS n"
         " FROM shop.app.orders o GROUP BY o.note", "neither grouped"),
        ("SELECT p.id, (SELECT sum(p.id) FROM shop.app.orders o) AS s FROM crm.app.people p", "there is no table p"),
        ("SELECT sum(sum(o.qty)) AS s FROM shop.app.orders o", "aggregate stands"),
        ("SELECT sum(o.f) AS s FROM shop.app.orders o", "depends on the order"),
        ("SELECT DISTINCT o.f FROM shop.app.orders o", "more than one zero"),
        ("SELECT o.id FROM shop.app.orders o WHERE rank() OVER (ORDER BY o.id) = 1", "a window is a part of a column"),
        ("SELECT rank() OVER () AS r FROM shop.app.orders o", "needs ORDER BY"),
        ("SELECT ntile(4) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "not among the windows"),
        ("SELECT sum(o.id) OVER w AS r FROM shop.app.orders o WINDOW w AS (ORDER BY o.id)", "WINDOW"),
        ("SELECT first_value(o.id) IGNORE NULLS OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "not among"),
        ("SELECT sum(o.id) OVER (ORDER BY o.id RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) AS r FROM shop.app.orders o",
         "frame"),
        ("SELECT sum(o.id) OVER (ORDER BY o.id ROWS BETWEEN CURRENT ROW AND 1 PRECEDING) AS r FROM shop.app.orders o",
         "ends before it begins"),
        ("SELECT sum(o.id) OVER (ORDER BY o.id ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING) AS r FROM shop.app.orders o",
         "ends before it begins"),
        ("SELECT lag(o.id, 1, 0.5) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "may not fit"),
        ("SELECT lag(o.total, 1, o.id) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "may not fit"),
        ("SELECT lead(o.total, 1, 0.555) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "may not fit"),
        ("SELECT lead(NULL, 1, o.id) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "has no type"),
        ("SELECT o.id, o.id IN (SELECT p.id FROM crm.app.people p) AS x FROM shop.app.orders o", "takes what is NULL"),
        ("SELECT o.id FROM shop.app.orders o WHERE NOT (o.ok OR o.id IN (SELECT p.id FROM crm.app.people p))",
         "takes what is NULL"),
        ("SELECT o.id FROM shop.app.orders o LEFT JOIN crm.app.people q ON q.id IN (SELECT p.id FROM crm.app.people p)",
         "takes what is NULL"),
        ("SELECT CAST(o.note AS STRING COLLATE UTF8_LCASE) = 'a' AS x FROM shop.app.orders o", "with COLLATE"),
        ("SELECT o.id FROM shop.app.orders o WHERE exists(o.note, x -> x)", "with EXPRESSION"),
        ("SELECT row_number(o.id) OVER (ORDER BY o.id) AS x FROM shop.app.orders o", "with THIS"),
        ("SELECT length(o.note, 'x') AS x FROM shop.app.orders o", "with BINARY"),
        ("SELECT CAST(to_date(o.note) AS STRING) AS x FROM shop.app.orders o", "reads a text"),
        ("SELECT to_date(o.note) AS x FROM shop.app.orders o", "reads a text"),
        ("SELECT CAST(to_date(o.qty) AS BIGINT) AS x FROM shop.app.orders o", "reads a text"),
        ("SELECT to_date(o.day, 'yyyy') AS x FROM shop.app.orders o", "has no format"),
        ("SELECT CAST(o.at AS STRING) AS x FROM shop.app.orders o", "may round or fail"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.day = DATE '2024-W01-1'", "is not YYYY-MM-DD"),
        ("SELECT -CAST(o.total AS DECIMAL(38,2)) AS x FROM shop.app.orders o", "rounded by Spark to 34"),
        ("SELECT abs(CAST(o.total AS DECIMAL(35,2))) AS x FROM shop.app.orders o", "rounded by Spark to 34"),
        ("SELECT lag(o.id, 100000000) OVER (ORDER BY o.id) AS r FROM shop.app.orders o", "at most"),
        ("SELECT o.id FROM shop.app.orders o UNION SELECT p.name FROM crm.app.people p", "stand together"),
        ("SELECT o.id FROM shop.app.orders o UNION SELECT p.id, p.name FROM crm.app.people p", "of 1 and of 2"),
        ("SELECT o.id, o.f FROM shop.app.orders o", "more than one zero"),
        ("SELECT q.id FROM (SELECT o.id FROM shop.app.orders o) q, crm.app.people o, crm.app.people o", "one name"),
        ("SELECT o.id FROM crm.app.people o WHERE o.id IN (SELECT p.id, p.name FROM crm.app.people p)", "several"),
        ("SELECT o.id FROM " + "(SELECT o.id FROM " * 12 + "shop.app.orders o" + ") o" * 12, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_query_when_it_is_more_than_a_query_over_tables_then_it_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(ViewRefused) as refused:
        query(sql)
    assert reason in refused.value.found


def nested(deep: int, begin: str, end: str, value: str) -> str:
    for _ in range(deep):
        value = f"{begin}{value}{end}"
    return value


@pytest.mark.parametrize(
    ("begin", "end", "group"),
    [
        ("CASE ", " WHEN 1 THEN 1 WHEN 2 THEN 2 END", ""),
        ("nullif(", ", 1)", " GROUP BY o.qty, o.id"),
        ("coalesce(1 + (", ") * 2, 3)", " GROUP BY o.qty"),
        ("CASE WHEN abs(", ") > 1 THEN 1 END", " GROUP BY o.qty + 1, o.qty"),
        ("(SELECT p.id + (SELECT count(*) FROM crm.app.people q WHERE q.id = ", ") FROM crm.app.people p)", ""),
        ("(SELECT p.id FROM crm.app.people p WHERE p.id = ", " GROUP BY p.id)", " GROUP BY o.qty"),
    ],
)
def test_a_text_when_it_is_nested_deeply_then_each_of_its_parts_is_read_a_few_times(
    begin: str, end: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: Counter[int] = Counter()
    real = QueryScope.read

    def read(scope: QueryScope, node: exp.Expression) -> Term:
        visits[id(node)] += 1
        return real(scope, node)

    monkeypatch.setattr(QueryScope, "read", read)
    deep = 3 if "SELECT" in begin else 7
    query(f"SELECT {nested(deep, begin, end, 'o.qty')} AS x FROM shop.app.orders o{group}")
    assert max(visits.values()) <= 3, visits.most_common(3)


def test_aggregates_and_windows_when_they_are_looked_for_then_each_part_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[int] = Counter()
    real = exp.Expression.iter_expressions

    def parts(node: exp.Expression, reverse: bool = False) -> Iterator[exp.Expression]:
        seen[id(node)] += 1
        return real(node, reverse)

    text = f"SELECT {nested(40, '(1 + ', ')', 'count(*)')} AS x FROM shop.app.orders o GROUP BY o.qty"
    tree = read_scheduled(EVERY + text)
    monkeypatch.setattr("menura.views.query_plan.read_scheduled", lambda _sql: tree)
    monkeypatch.setattr(exp.Expression, "iter_expressions", parts)
    assert query(text).outputs
    assert max(seen.values()) <= 4, seen.most_common(3)


@pytest.mark.parametrize("begin", ["CASE ", "nullif"])
def test_an_expression_when_its_parts_are_written_more_than_once_then_its_size_is_bounded(begin: str) -> None:
    value = "o.qty"
    for _ in range(24):
        value = f"(CASE {value} {' '.join(f'WHEN {n} THEN {n}' for n in range(9))} END)" if begin != "nullif" else value
        value = f"nullif({value}, 1)" if begin == "nullif" else value
    sql = f"SELECT o.id, {value} AS x FROM shop.app.orders o"
    if begin == "nullif":
        assert query(sql).sql.count("nullif") == 24
        return
    with pytest.raises(ViewRefused, match="nested too deeply"):
        query(sql)


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        ("SCHEDULE EVERY 59 SECONDS AS ", "EVERY n MINUTES"),
        ("SCHEDULE EVERY 0 MINUTES AS ", "once a minute"),
        ("SCHEDULE EVERY 32 DAYS AS ", "once a minute"),
        ("SCHEDULE DAILY AS ", "EVERY n MINUTES"),
        ("SCHEDULE EVERY 1 HOUR SCHEDULE EVERY 1 HOUR AS ", "EVERY n MINUTES"),
        ("SCHEDULE EVERY 1 HOUR AS SCHEDULE EVERY 1 HOUR AS ", "two schedules"),
        ("SCHEDULE EVERY 1 HOUR KEY (nothing) AS ", "none of its columns"),
        ("SCHEDULE EVERY 1 HOUR KEY (id, ID) AS ", "twice"),
        ("SCHEDULE EVERY 1 HOUR KEY (f) AS ", "more than one zero"),
    ],
)
def test_a_schedule_when_it_is_none_then_the_refusal_says_what_one_is(begin: str, reason: str) -> None:
    with pytest.raises(ViewRefused) as refused:
        query("SELECT o.id, o.f FROM shop.app.orders o", begin)
    assert reason in refused.value.found


def test_a_key_when_it_is_named_or_not_then_rows_are_told_apart_by_it_by_groups_or_by_all_columns() -> None:
    by_id = query("SELECT o.id, o.f FROM shop.app.orders o", "schedule every 2 days key (ID) as ")
    assert (by_id.key, by_id.every_seconds) == (("id",), 172_800)
    assert query("SELECT avg(o.qty) AS mean, o.note FROM shop.app.orders o GROUP BY o.note").key == ("note",)
    assert query("SELECT count(*) AS n FROM shop.app.orders o GROUP BY o.note").key == ("n",)
    assert query("SELECT DISTINCT o.note, o.qty FROM shop.app.orders o").key == ("note", "qty")
    assert by_id.inputs == ((ORDERS, ("id", "f")),)
    assert query("SELECT count(*) AS n FROM shop.app.orders o").inputs == ((ORDERS, ("id",)),)


def test_a_text_when_it_is_given_a_schedule_then_it_is_read_back_and_places_stay() -> None:
    text = scheduled("SELECT o.id,\n reflect('a') AS y FROM shop.app.orders o", "90m", ("id", "y"))
    assert (every_seconds_of(text), read_scheduled(text).key, is_scheduled(text)) == (5400, ("id", "y"), True)
    with pytest.raises(ViewRefused) as refused:
        plan_query(text, SHAPES)
    assert refused.value.line == 2


def test_a_query_when_it_is_explained_then_it_says_when_why_and_what_is_read() -> None:
    plan = query("SELECT DISTINCT o.note FROM shop.app.orders o JOIN crm.app.people p ON p.id < o.id")
    found = explain_query(plan, "it has DISTINCT", {ORDERS: 1000}, {ORDERS: 5000, PEOPLE: 70})
    assert found.lines == (
        "It is recomputed every 1 hour where one of its tables has changed; what differs from its rows are its"
        " changes.",
        "It is not followed change by change: it has DISTINCT.",
        "One recomputation reads all rows of 2 tables: about 1,000 rows of 1 of them, about 5,070 bytes as their"
        " servers store them.",
        "A row of the view is known by note.",
    )
    assert [(each.name, each.rows) for each in found.inputs] == [("crm.app.people", -1), ("shop.app.orders", 1000)]


def test_views_when_one_reads_another_that_is_recomputed_then_they_are_in_order() -> None:
    first = ViewDefinition("acme", "a", "SELECT b.id FROM b")
    second = ViewDefinition(
        "acme", "b", f"{EVERY}SELECT o.id FROM shop.app.orders o WHERE o.id IN (SELECT c.id FROM c)"
    )
    third = ViewDefinition("acme", "c", "SELECT o.id FROM shop.app.orders o")
    assert in_order([first, second, third]) == [third, second, first]
    assert inputs_of(second.sql) == (ORDERS, InputName.of_view("c"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT o.id, o.person AS qty, o.qty + 1 AS v FROM shop.app.orders o ORDER BY o.qty + 1 LIMIT 5",
        "SELECT qty, qty + 1 AS v FROM shop.app.orders o ORDER BY qty + 1, (qty) LIMIT 5",
        "SELECT p.id, (SELECT count(*) AS name FROM shop.app.orders o HAVING p.name IS NOT NULL) AS n"
        " FROM crm.app.people p",
    ],
)
def test_a_name_when_an_alias_has_it_too_then_a_column_with_its_table_is_planned(sql: str) -> None:
    assert query(sql).sql
