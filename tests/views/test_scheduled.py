"""Queries that are computed at intervals: what is given to Spark, and what never is."""

import pytest
from menura.views.definition import InputName, ViewDefinition, ViewRefused
from menura.views.explain import explain_schedule
from menura.views.reads import in_order, inputs_of
from menura.views.scheduled import read_schedule

EVERY = "SCHEDULE EVERY 1 HOUR AS "


def given(sql: str) -> str:
    """What Spark would be."""
    return read_schedule(EVERY + sql).text(lambda name: f"t_{name.table}")


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (
            "SELECT a.x FROM shop.app.a JOIN shop.app.b ON a.x < b.x",
            "SELECT `a`.`x` FROM `t_a` AS `a` JOIN `t_b` AS `b` ON `a`.`x` < `b`.`x`",
        ),
        (
            "SELECT x, row_number() OVER (PARTITION BY x ORDER BY y) AS n FROM big",
            "SELECT `x`, ROW_NUMBER() OVER (PARTITION BY `x` ORDER BY `y`) AS `n` FROM `t_big` AS `big`",
        ),
        (
            "SELECT x FROM (SELECT x FROM a) q UNION ALL SELECT y FROM b",
            "SELECT `x` FROM (SELECT `x` FROM `t_a` AS `a`) AS `q` UNION ALL SELECT `y` FROM `t_b` AS `b`",
        ),
        (
            "WITH g AS (SELECT x FROM a) SELECT g.x FROM g",
            "WITH `menura_with_g` AS (SELECT `x` FROM `t_a` AS `a`) SELECT `g`.`x` FROM `menura_with_g` AS `g`",
        ),
    ],
)
def test_a_query_when_it_is_read_then_spark_is_given_its_own_names_of_tables(sql: str, text: str) -> None:
    assert given(sql) == text


@pytest.mark.parametrize(
    "sql",
    [
        "WITH secrets AS (SELECT x FROM secrets) SELECT s.x FROM secrets s JOIN a ON a.x = s.x",
        "SELECT x FROM secrets WHERE EXISTS (WITH secrets AS (SELECT x FROM a) SELECT x FROM secrets)",
    ],
)
def test_a_name_of_with_when_it_does_not_hold_there_then_it_is_no_table_of_sparks_catalog(sql: str) -> None:
    assert "FROM `secrets`" not in given(sql)
    assert inputs_of(EVERY + sql) == (InputName.of_view("a"),)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT reflect('java.lang.System', 'exit', 1) AS x FROM a", "reflect is not among"),
        ("SELECT java_method('java.lang.System', 'exit', 1) AS x FROM a", "java_method is not among"),
        ("SELECT x.reflect('a') AS y FROM a", "by its name alone"),
        ("SELECT input_file_name() AS f FROM a", "input_file_name is not among"),
        ("SELECT TRANSFORM(x) USING 'cat' AS y FROM a", "no script"),
        ("SELECT x FROM parquet.`/etc/passwd`", "SOURCE.DATABASE.TABLE"),
        ("SELECT x FROM read_files('/etc')", "by their names alone"),
        ("SELECT x FROM range(1000000000)", "by their names alone"),
        ("SELECT x FROM IDENTIFIER('a')", "by their names alone"),
        ("SELECT (SELECT max(y) FROM read_files('/x')) AS m FROM a", "by their names alone"),
        ("SELECT /*+ BROADCAST(a) */ x FROM a", "no hint"),
        ("SELECT x FROM a TABLESAMPLE (1 ROWS)", "TABLESAMPLE"),
        ("SELECT x FROM a VERSION AS OF 3", "VERSION AS OF"),
        ("SELECT x FROM a WHERE x = :y", "no parameter"),
        ("DROP TABLE a", "one query"),
        ("INSERT INTO a SELECT x FROM a", "one query"),
        ("CACHE TABLE a", "one query"),
        ("SELECT x FROM a; DROP TABLE a", "one SELECT"),
        ("SELECT 1 AS x", "reads a table"),
        ("SELECT * FROM a", "one by one"),
        ("SELECT x + 1 FROM a", "needs a name"),
        ("SELECT x, X FROM a", "two columns"),
        ("SELECT x AS _gsn FROM a", "can't be called"),
    ],
)
def test_a_query_when_it_is_more_than_a_query_over_tables_then_it_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(ViewRefused) as refused:
        read_schedule(EVERY + sql)
    assert reason in refused.value.found


@pytest.mark.parametrize("begin", ["SCHEDULE EVERY 59 SECONDS AS ", "SCHEDULE EVERY 0 MINUTES ", "SCHEDULE DAILY AS "])
def test_an_interval_when_it_is_none_then_the_refusal_says_what_one_is(begin: str) -> None:
    with pytest.raises(ViewRefused, match=r"EVERY n MINUTES|once a minute"):
        read_schedule(f"{begin}SELECT x FROM a")


def test_a_place_when_it_is_behind_the_schedule_then_it_is_that_of_the_text() -> None:
    with pytest.raises(ViewRefused) as refused:
        read_schedule("SCHEDULE EVERY 1 HOUR\nAS SELECT x,\n  reflect('a') AS y FROM a")
    assert refused.value.line == 3


def test_a_schedule_when_it_is_explained_then_it_says_when_changes_count() -> None:
    found = explain_schedule(read_schedule("SCHEDULE EVERY 2 HOURS AS SELECT x, y FROM shop.app.a JOIN b USING (x)"))
    assert [each.name for each in found.inputs] == ["shop.app.a", "b"]
    assert found.key == ("x", "y")
    assert "each 120 minutes by Spark SQL" in found.lines[0]


def test_views_when_one_reads_another_at_intervals_then_they_are_in_order() -> None:
    first = ViewDefinition("acme", "a", f"{EVERY}SELECT b.id FROM b")
    second = ViewDefinition("acme", "b", "SELECT o.id FROM shop.app.orders o")
    assert in_order([first, second]) == [second, first]
