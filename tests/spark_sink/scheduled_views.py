"""Queries of views that are recomputed on a schedule, over the tables of a `World`, and a clock that tests move."""

import sys
from dataclasses import dataclass

import pytest

from tests.spark_sink.view_model import Named, Text

#: keys of those that have one; the others' rows are told apart by all of their columns, or by their groups
KEYS = {"windows": "id", "newest": "id", "of_a_query": "code, qty", "first_of_each": "person", "sub_queries": "id"}
HOUR_US = 3_600_000_000


def of(text: str) -> Text:
    """A text in which {orders}, {people} and {countries} are tables."""

    def named_text(named: Named, by: str = "") -> str:
        return text.format(**{name: named(name) for name in ("orders", "people", "countries")})

    return named_text


#: one for each thing that no view which is followed may have
SHAPES = {
    "windows": (
        "SELECT o.id, row_number() OVER (PARTITION BY o.person ORDER BY o.total DESC, o.id) AS place,"
        " rank() OVER (ORDER BY o.qty) AS ranked, dense_rank() OVER (ORDER BY o.note DESC) AS dense,"
        " sum(o.qty) OVER (PARTITION BY o.person ORDER BY o.id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS few,"
        " avg(o.total) OVER (PARTITION BY o.note) AS mean, count(*) OVER () AS n,"
        " lag(o.qty, 1, 0) OVER (ORDER BY o.id) AS before, lead(o.day) OVER (ORDER BY o.day DESC, o.id) AS after,"
        " first_value(o.note) OVER (ORDER BY o.day, o.id) AS first,"
        " max(o.total) OVER (ORDER BY o.qty) AS up_to FROM {orders} o"
    ),
    "full_join": (
        "SELECT o.id, p.id AS person, p.name, c.title FROM {orders} o FULL OUTER JOIN {people} p ON p.id = o.person"
        " LEFT JOIN {countries} c ON c.code = p.country"
    ),
    "right_join": "SELECT o.id, p.id AS person FROM {orders} o RIGHT JOIN {people} p ON p.id = o.person AND o.qty > 0",
    "many_to_many": (
        "SELECT o.id, p.id AS person, o.qty * p.id AS product FROM {orders} o"
        " JOIN {people} p ON p.id >= o.person AND p.id <= o.person + 1 WHERE p.name IS NOT NULL OR o.qty > 1"
    ),
    "distinct": "SELECT DISTINCT o.note, o.qty > 0 AS some FROM {orders} o, {countries} c WHERE c.title = 'X'",
    "unions": (
        "SELECT o.note AS word FROM {orders} o UNION SELECT p.name FROM {people} p"
        " UNION (SELECT c.code FROM {countries} c EXCEPT SELECT q.country FROM {people} q)"
    ),
    "union_all": (
        "SELECT 'order' AS kind, o.id, o.total AS total FROM {orders} o UNION ALL"
        " SELECT 'person', p.id, p.id + 1 FROM {people} p"
    ),
    "intersect": (
        "SELECT o.qty AS id FROM {orders} o UNION SELECT o.person FROM {orders} o INTERSECT SELECT p.id FROM {people} p"
    ),
    "having": (
        "SELECT p.country, count(DISTINCT o.note) AS notes, sum(o.total) AS total, avg(o.total) AS mean,"
        " avg(o.qty) AS qty, min(o.day) AS first, sum(o.qty) * 2 + count(*) AS mixed FROM {people} p"
        " LEFT JOIN {orders} o ON o.person = p.id GROUP BY p.country HAVING count(*) > 1 AND max(p.id) > 2"
    ),
    "whole": "SELECT count(*) AS n, count(DISTINCT o.person) AS persons, sum(o.qty) AS qty FROM {orders} o",
    "newest": "SELECT o.id, o.day, o.total FROM {orders} o ORDER BY o.day DESC, o.total, o.id LIMIT 5",
    "first_of_each": (
        "WITH placed AS (SELECT o.id, o.person, o.total, row_number() OVER (PARTITION BY o.person ORDER BY o.id) AS n"
        " FROM {orders} o), best AS (SELECT p.person, p.total, p.id FROM placed p WHERE p.n = 1)"
        " SELECT b.person, b.id, b.total, q.name FROM best b LEFT JOIN {people} q ON q.id = b.person"
    ),
    "sub_queries": (
        "SELECT p.id, (SELECT max(o.total) FROM {orders} o WHERE o.person = p.id) AS most,"
        " (SELECT count(*) FROM {orders} o WHERE o.person = p.id AND o.qty > 0) AS some FROM {people} p"
        " WHERE EXISTS (SELECT * FROM {orders} o WHERE o.person = p.id)"
        " OR p.country NOT IN (SELECT c.code FROM {countries} c WHERE c.title = 'Y')"
        " OR p.id IN (SELECT q.qty FROM {orders} q)"
    ),
    "semi_and_anti": (
        "SELECT o.id, o.note FROM {orders} o LEFT SEMI JOIN {people} p ON p.id = o.person"
        " LEFT ANTI JOIN {countries} c ON c.code = o.note OR c.title = 'Y' AND o.qty = 1"
    ),
    "ranked_groups": (
        "SELECT o.note, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS place, sum(count(*)) OVER () AS of"
        " FROM {orders} o GROUP BY o.note"
    ),
    "of_a_query": (
        "SELECT g.qty, g.n, c.code, c.title FROM (SELECT o.qty, count(*) AS n FROM {orders} o GROUP BY o.qty) g"
        " CROSS JOIN {countries} c WHERE g.n > (SELECT min(x.n) FROM (SELECT count(*) AS n FROM {people} p"
        " GROUP BY p.country) x)"
    ),
}  # fmt: skip
TEXTS = {name: of(text) for name, text in SHAPES.items()}


def scheduled(name: str) -> Text:
    """One of these as a view."""
    key = f" KEY ({KEYS[name]})" if name in KEYS else ""
    return lambda named, by="": f"SCHEDULE EVERY 1 HOUR{key} AS {TEXTS[name](named)}"


@dataclass
class Clock:
    now: int = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now


def clock_of(patched: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name, module in list(sys.modules.items()):
        if name.startswith("spark_sink.") and hasattr(module, "now_us"):
            patched.setattr(module, "now_us", clock)
    return clock
