"""Which texts can be a view, and why others can't."""

import pytest
from menura.views.definition import Column, InputName, Shape, ViewDefinition, ViewRefused, decode_views
from menura.views.explain import explain
from menura.views.parsing import MOST_NODES
from menura.views.plan import Plan, Role, make_plan
from menura.views.query_plan import plan_query
from menura.views.reads import in_order

ORDERS = InputName("shop", "app", "orders")
PEOPLE = InputName("crm", "app", "people")
COUNTRIES = InputName("crm", "app", "countries")
SHAPES = {
    ORDERS: Shape(
        tuple(
            Column(*each.split())
            for each in ("id l", "person l", "total d:10,2", "qty l", "day tdD", "note u", "f g", "at tsu:", "ok b")
        ),
        ("id",),
    ),
    PEOPLE: Shape((Column("id", "l"), Column("name", "u"), Column("country", "u")), ("id",)),
    COUNTRIES: Shape((Column("code", "u"), Column("title", "u")), ("code",)),
    InputName("shop", "app", "log"): Shape((Column("x", "l"),), ()),
    InputName("shop", "app", "lines"): Shape(
        (Column("id", "l"), Column("line", "l"), Column("n", "l")), ("id", "line")
    ),
}


def planned(sql: str) -> Plan:
    return make_plan(sql, SHAPES)


def test_a_chain_of_joins_when_it_is_planned_then_each_table_is_looked_up_by_its_key() -> None:
    plan = planned(
        "SELECT o.id, c.title FROM shop.app.orders o JOIN crm.app.people p ON o.person = p.id AND p.name <> 'x'"
        " LEFT JOIN crm.app.countries c ON c.code = p.country WHERE o.qty > 1"
    )
    assert [(each.alias, each.role, each.parent) for each in plan.inputs] == [
        ("o", Role.DRIVING, ""),
        ("p", Role.INNER, "o"),
        ("c", Role.LEFT, "p"),
    ]
    assert plan.inputs[1].columns == ("id", "name", "country")
    assert plan.shape == Shape((Column("id", "l"), Column("title", "u")), ("id",))


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("o.total * 2", "d:12,2"),
        ("o.total + o.qty", "d:23,2"),
        ("CASE WHEN o.qty > 3 THEN 'a' END", "u"),
        ("coalesce(o.note, '-')", "u"),
        ("concat(o.note, 'b')", "u"),
        ("length(o.note)", "l"),
        ("year(o.day)", "l"),
        ("CAST(o.at AS DATE)", "tdD"),
        ("o.day >= DATE '2024-01-01'", "b"),
        ("nullif(o.qty, 0)", "l"),
        ("o.qty <=> NULL", "b"),
        ("o.note LIKE 'a%'", "b"),
        ("o.note NOT LIKE 'a%'", "b"),
        ("CAST(o.qty AS DECIMAL(25,2))", "d:25,2"),
        ("o.f * o.f", "g"),
        ("5L", "l"),
        ("-7L + o.qty", "l"),
        ("5L + 0.5", "d:3,1"),
        ("CAST(5 AS BIGINT) + 0.5", "d:22,1"),
        ("coalesce(5L, 0.5)", "d:21,1"),
        ("0.5BD", "d:1,1"),
        ("3BD", "d:1,0"),
        ("3bd + .25", "d:4,2"),
        ("5. + 0.5", "d:3,1"),
        ("1.5D", "g"),
        ("1e3", "g"),
        ("2E-1 * o.f", "g"),
        ("o.note = '5L'", "b"),
    ],
)
def test_an_expression_when_it_has_one_meaning_then_it_has_sparks_type(column: str, type_: str) -> None:
    assert planned(f"SELECT o.id, {column} AS x FROM shop.app.orders o").outputs[1].type == type_


@pytest.mark.parametrize(
    ("aggregate", "type_"),
    [
        ("count(*)", "l"),
        ("count(o.note)", "l"),
        ("sum(o.total)", "d:20,2"),
        ("avg(o.qty)", "g"),
        ("avg(o.total)", "d:14,6"),
        ("max(o.f)", "g"),
    ],
)
def test_an_aggregate_when_it_is_planned_then_the_view_is_known_by_its_groups(aggregate: str, type_: str) -> None:
    plan = planned(f"SELECT year(o.day) AS y, {aggregate} AS x FROM shop.app.orders o GROUP BY year(o.day)")
    assert (plan.key, plan.outputs[1].type) == (("y",), type_)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM shop.app.orders o", "named one by one"),
        ("SELECT o.note FROM shop.app.orders o", "lacks o.id"),
        ("SELECT x FROM shop.app.log", "no primary key"),
        ("SELECT o.id FROM shop.app.orders o JOIN crm.app.people p ON p.name = o.note", "more than one of its rows"),
        ("SELECT o.id FROM shop.app.orders o JOIN shop.app.lines l ON l.id = o.id", "more than one of its rows"),
        ("SELECT o.id FROM shop.app.orders o JOIN crm.app.people p ON p.id = o.note", "STRING"),
        ("SELECT o.id FROM shop.app.orders o RIGHT JOIN crm.app.people p ON p.id = o.id", "RIGHT"),
        ("SELECT o.id FROM shop.app.orders o LEFT ANTI JOIN crm.app.people p ON p.id = o.id", "INNER or LEFT"),
        ("SELECT o.id FROM shop.app.orders o JOIN crm.app.people p USING (id)", "USING"),
        ("SELECT o.id FROM shop.app.orders o, crm.app.people p", "CROSS"),
        ("SELECT o.id FROM (SELECT 1) o", "by name alone"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.id IN (SELECT 1)", "list of values"),
        ("SELECT o.day, sum(o.f) AS x FROM shop.app.orders o GROUP BY o.day", "depends on the order"),
        ("SELECT o.day, avg(CAST(o.total AS DECIMAL(38,2))) AS x FROM shop.app.orders o GROUP BY o.day", "42 digits"),
        ("SELECT o.day, count(DISTINCT o.id) AS n FROM shop.app.orders o GROUP BY o.day", "DISTINCT"),
        ("SELECT o.f, count(*) AS n FROM shop.app.orders o GROUP BY o.f", "no float"),
        ("SELECT o.day, count(*) AS n FROM shop.app.orders o GROUP BY (1)", "not their places"),
        ("SELECT o.day, o.qty FROM shop.app.orders o GROUP BY o.day", "neither grouped by"),
        ("SELECT count(*) AS n FROM shop.app.orders o", "needs GROUP BY"),
        ("SELECT o.day, count(*) AS n FROM shop.app.orders o GROUP BY o.day HAVING count(*) > 1", "HAVING"),
        ("SELECT DISTINCT o.id FROM shop.app.orders o", "DISTINCT"),
        ("SELECT o.id FROM shop.app.orders o ORDER BY o.id", "ORDER BY"),
        ("SELECT o.id FROM shop.app.orders o UNION SELECT o.id FROM shop.app.orders o", "one SELECT"),
        ("SELECT o.id FROM shop.app.orders o; SELECT 1", "one SELECT"),
        ("SELECT o.id, upper(o.note) AS u FROM shop.app.orders o", "UPPER"),
        ("SELECT o.id, o.qty / 2 AS u FROM shop.app.orders o", "Div"),
        ("SELECT o.id, current_date() AS u FROM shop.app.orders o", "CURRENT_DATE"),
        ("SELECT o.id, read_csv('/etc/passwd') AS u FROM shop.app.orders o", "READ_CSV"),
        ("SELECT o.id, CAST(o.note AS BIGINT) AS u FROM shop.app.orders o", "may round or fail"),
        ("SELECT o.id, o.total * CAST(o.total AS DECIMAL(38,2)) AS u FROM shop.app.orders o", "at most 38"),
        ("SELECT o.id, o.note = 1 AS u FROM shop.app.orders o", "stand together"),
        ("SELECT o.id AS `_gsn` FROM shop.app.orders o", "can't be called"),
        ("SELECT o.id, o.nothing FROM shop.app.orders o", "no column"),
        ("SELECT o.id FROM shop.app.gone o", "not known"),
        ("SELECT o.id FROM app.orders o", "SOURCE.DATABASE.TABLE"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.note = 'O''Brien'", "apostrophe"),
        ("SELECT o.id FROM shop.app.orders o WHERE o.qty BETWEEN SYMMETRIC 9 AND 1", "least value"),
        ("SELECT o.day, count(* EXCEPT (qty)) AS n FROM shop.app.orders o GROUP BY o.day", "whatever columns"),
        ("SELECT o.id, " + "(" * 100 + "1" + ")" * 100 + " AS x FROM shop.app.orders o", "nested"),
        ("SELECT o.id FROM shop.app.orders o WHERE " + " AND ".join(["o.ok"] * (MOST_NODES // 3)), "parts"),
        ("SELECT o.id FROM shop.app.orders o WHERE " + " AND ".join(["o.ok"] * (MOST_NODES // 5)), "nested"),
    ],
)
def test_a_text_when_it_can_not_be_kept_up_to_date_then_the_reason_is_said(sql: str, reason: str) -> None:
    with pytest.raises(ViewRefused, match=r".+") as refused:
        planned(sql)
    assert reason in refused.value.found


def test_a_refusal_when_it_is_about_a_place_then_the_place_is_said() -> None:
    with pytest.raises(ViewRefused) as refused:
        planned("SELECT o.id,\n  upper(o.note) AS u\nFROM shop.app.orders o")
    assert (refused.value.line, refused.value.column) == (2, 3)


def test_a_join_when_it_begins_at_the_wrong_end_then_the_refusal_says_where_to_begin() -> None:
    with pytest.raises(ViewRefused, match="begin with it: FROM orders JOIN the others") as refused:
        planned("SELECT p.id FROM crm.app.people p JOIN shop.app.orders o ON o.person = p.id")
    assert "orders is joined by no column of its key, and its key is id" in refused.value.found


def test_a_plan_when_it_is_explained_then_each_table_says_what_its_change_costs() -> None:
    plan = planned("SELECT o.id, p.name FROM shop.app.orders o LEFT JOIN crm.app.people p ON p.id = o.person")
    found = explain(plan, {ORDERS: 1000, PEOPLE: 100})
    assert [each.fan_out for each in found.inputs] == [
        "one row of the view",
        "all rows of shop.app.orders that look the row up, 10 on average",
    ]
    assert found.inputs[1].joined_on == (("id", "o.person"),)
    assert found.as_document()["key"] == ("id",)


def test_views_when_they_read_each_other_then_they_are_in_order_or_refused() -> None:
    first = ViewDefinition("acme", "a", "SELECT b.id FROM b")
    second = ViewDefinition("acme", "b", "SELECT o.id FROM shop.app.orders o")
    assert in_order([first, second]) == [second, first]
    with pytest.raises(ViewRefused):
        in_order([first, ViewDefinition("acme", "b", "SELECT a.id FROM a")])


@pytest.mark.parametrize(
    "document", ["[]", "{}", '{"format": 1, "views": [{"tenant": "../x"}]}', '{"format": 2}', "[" * 100_000]
)
def test_a_document_when_it_is_none_of_views_then_it_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_views(document)


CHAINS = [
    "o.ok = o.id < o.qty", "o.ok = o.ok = o.ok", "o.ok = o.ok BETWEEN false AND true", "o.ok <> o.ok IN (false, NULL)",
    "o.ok <> o.ok NOT IN (false)", "o.ok = o.note LIKE 'a'", "o.note NOT LIKE 'a' = o.ok",
    "o.ok = o.ok NOT BETWEEN false AND true",
    "o.id BETWEEN 1 AND 2 = o.ok", "o.id < o.qty = o.ok", "o.ok <=> o.id < o.qty", "o.ok <=> o.ok IN (true)",
    "o.ok = NOT o.ok", "o.id BETWEEN 1 AND 2 IS NULL", "o.ok <=> NOT o.ok", "o.ok <=> (o.ok) IN (true)",
    "o.ok <=> (o.ok) = o.ok IN (true)", "o.id <=> (o.id) + 1 < o.qty", "o.note <=> (o.note) || 'a' LIKE 'b'",
    "o.ok <=> (o.id < 1) < o.ok BETWEEN false AND true",
]  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_a_comparison_when_it_is_compared_without_parentheses_then_it_is_refused(chain: str) -> None:
    for text in (
        f"SELECT o.id, {chain} AS x FROM shop.app.orders o",
        f"SELECT o.id FROM shop.app.orders o WHERE o.qty > 1 AND {chain}",
    ):
        with pytest.raises(ViewRefused) as refused:
            planned(text)
        assert "a comparison is" in refused.value.found
        with pytest.raises(ViewRefused) as refused:
            plan_query(f"SCHEDULE EVERY 1 HOUR AS {text}", {ORDERS: SHAPES[ORDERS]})
        assert "a comparison is" in refused.value.found


@pytest.mark.parametrize(
    "chain",
    [
        "o.ok = (o.id < o.qty)", "(o.ok = o.ok) = o.ok", "(o.ok = o.ok) BETWEEN false AND true",
        "o.ok <> (o.ok NOT IN (false, NULL))", "NOT o.ok = o.ok", "NOT o.id BETWEEN 1 AND 2",
        "o.ok <=> ((o.id < o.qty))", "o.ok <=> (o.id < o.qty)", "o.ok <=> (o.id IN (1, (2))) AND o.ok",
        "o.ok <=> (NOT o.ok) OR o.ok", "CASE WHEN o.ok <=> (o.id IS NULL) THEN o.ok END",
        "o.ok <=> (o.ok <=> (o.id = 1))", "coalesce(o.ok <=> (o.id = 1), o.ok)",
        "o.ok = o.ok IS NULL", "(o.id < o.qty) <=> o.ok", "o.ok = o.ok AND o.id < 3",
    ],
)  # fmt: skip
def test_a_comparison_when_it_is_in_parentheses_then_it_is_compared(chain: str) -> None:
    assert planned(f"SELECT o.id, {chain} AS x FROM shop.app.orders o").outputs[1].type == "b"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("5S", "write it without S"), ("5Y", "write it without Y"), ("1.5F", "write it without F"),
        ("1e400D", "none of 64 bits"), ("1e400", "none of 64 bits"), ("1e2BD", "neither an integer"),
        ("1e2L", "neither an integer"), ("1.5L", "neither an integer"), ("9223372036854775808L", "neither an integer"),
        ("123456789012345678901234567890123456789BD", "neither an integer"),
        ("CAST(o.qty AS DECIMAL(25L,2))", "whole numbers"), (f"CAST(o.qty AS DECIMAL({'9' * 5_000}))", "whole numbers"),
        (f"CAST(o.qty AS DECIMAL(25,{'9' * 5_000}))", "whole numbers"),
        ("+5", r"a sign \+ before it"), ("-+5", r"a sign \+ before it"), ("o.qty * +(0.5)", r"a sign \+ before it"),
        ("coalesce(o.total, + 0.5)", r"a sign \+ before it"), ("CASE WHEN o.ok THEN +1 END", r"a sign \+ before it"),
    ],
)  # fmt: skip
def test_a_number_when_views_have_no_such_type_then_it_is_refused(number: str, reason: str) -> None:
    text = f"SELECT o.id, {number} AS x FROM shop.app.orders o"
    with pytest.raises(ViewRefused, match=reason):
        planned(text)
    with pytest.raises(ViewRefused, match=reason):
        plan_query(f"SCHEDULE EVERY 1 HOUR AS {text}", {ORDERS: SHAPES[ORDERS]})


@pytest.mark.parametrize("column", ["+o.qty", "o.qty + 5", "5 + +o.qty", "(o.qty) + 5L", "-(5) + 1.5", "- -5"])
def test_a_sign_when_it_is_of_no_number_then_it_is_read(column: str) -> None:
    assert len(planned(f"SELECT o.id, {column} AS x FROM shop.app.orders o").outputs) == 2
