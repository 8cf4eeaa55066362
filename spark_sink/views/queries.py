"""A view's plan as the engine's queries: its rows, its groups, and what a change does to either.

Comes in: a plan, and names under which the engine knows tables. Goes out: SQL. A group is kept with what it is made of
beside its columns, in columns of the sink's own: how many rows it has, and of sum and avg the exact sum and how many
values it has. So a change of a group costs what changed, not what the group has.
"""

from collections.abc import Iterable, Sequence

from menura.types import decimal_digits
from menura.views.averages import average
from menura.views.plan import Aggregate, Output, Plan
from menura.views.terms import quoted, type_word

ROWS = "_menura_n"
#: of a change: what it is, and its number
KIND, NUMBER = "_menura_kind", "_menura_number"
#: whether a group's extremes have to be found among all of its rows
ANEW = "_menura_anew"
_SUMMED = (Aggregate.SUM, Aggregate.AVG)
_EXTREMES = (Aggregate.MIN, Aggregate.MAX)
COUNT_TYPE = "l"


def sum_type(output: Output) -> str:
    """Of the exact sum, as an Arrow C format string."""
    digits = decimal_digits(output.argument_type)
    return f"d:38,{digits[1] if digits is not None else 0}"


def hidden(plan: Plan) -> list[tuple[str, str]]:
    """The sink's own columns of a view, with their types as Arrow C format strings."""
    if not plan.is_aggregate:
        return []
    found = [(ROWS, COUNT_TYPE)]
    for place, each in enumerate(plan.outputs):
        if each.aggregate in _SUMMED:
            found += [(f"_menura_s{place}", sum_type(each)), (f"_menura_c{place}", COUNT_TYPE)]
    return found


def row_query(plan: Plan) -> str:
    """The view's rows, or what its groups are made of: these, and aggregates' arguments as _menura_a{place}."""
    if not plan.is_aggregate:
        return f"SELECT {', '.join(map(_column, plan.outputs))} {plan.source_sql}"
    chosen = [_column(each) for each in plan.groups]
    chosen += [
        f"{each.sql or '1'} AS _menura_a{place}"
        for place, each in enumerate(plan.outputs)
        if each.aggregate is not None
    ]
    return f"SELECT {', '.join(chosen)} {plan.source_sql}"


def _column(output: Output) -> str:
    return f"CAST({output.sql} AS {type_word(output.type)}) AS {quoted(output.name)}"


def group_query(plan: Plan, rows: str) -> str:
    """The groups, with all of their columns, of rows as `row_query` gives them."""
    return _shown(plan, state_query(plan, rows))


def state_query(plan: Plan, rows: str) -> str:
    """What groups are made of, of rows as `row_query` gives them; of parts of them it can be added up."""
    chosen = [quoted(each.name) for each in plan.groups]
    states = [*chosen, f"count(*) AS {ROWS}"]
    for place, each in enumerate(plan.outputs):
        if each.aggregate is Aggregate.COUNT:
            states.append(f"count(_menura_a{place}) AS {quoted(each.name)}")
        elif each.aggregate in _EXTREMES:
            states.append(f"{each.aggregate}(_menura_a{place}) AS {quoted(each.name)}")
        elif each.aggregate in _SUMMED:
            states += [f"{_sum(place, each)} AS _menura_s{place}", f"count(_menura_a{place}) AS _menura_c{place}"]
    return f"SELECT {', '.join(states)} FROM {rows} GROUP BY {', '.join(chosen)}"  # noqa: S608  (quoted names)


def added_query(plan: Plan, states: str) -> str:
    """The groups, with all of their columns, of states that several parts of the rows have, as `state_query` gives."""
    chosen = [quoted(each.name) for each in plan.groups]
    added = [*chosen, f"CAST(sum({ROWS}) AS BIGINT) AS {ROWS}"]
    for place, each in enumerate(plan.outputs):
        name = quoted(each.name)
        if each.aggregate is Aggregate.COUNT:
            added.append(f"CAST(sum({name}) AS BIGINT) AS {name}")
        elif each.aggregate in _EXTREMES:
            added.append(f"{each.aggregate}({name}) AS {name}")
        elif each.aggregate in _SUMMED:
            word = type_word(sum_type(each))
            added += [
                f"CAST(sum(_menura_s{place}) AS {word}) AS _menura_s{place}",
                f"CAST(sum(_menura_c{place}) AS BIGINT) AS _menura_c{place}",
            ]
    return _shown(plan, f"SELECT {', '.join(added)} FROM {states} GROUP BY {', '.join(chosen)}")  # noqa: S608


def state_types(plan: Plan) -> list[tuple[str, str]]:
    """The columns of `state_query`, with their types as Arrow C format strings."""
    found = [(each.name, each.type) for each in plan.groups] + [(ROWS, COUNT_TYPE)]
    for place, each in enumerate(plan.outputs):
        if each.aggregate is Aggregate.COUNT:
            found.append((each.name, COUNT_TYPE))
        elif each.aggregate in _EXTREMES:
            found.append((each.name, each.type))
        elif each.aggregate in _SUMMED:
            found += [(f"_menura_s{place}", sum_type(each)), (f"_menura_c{place}", COUNT_TYPE)]
    return found


def _sum(place: int, output: Output, sign: str = "") -> str:
    word = type_word(sum_type(output))
    return f"CAST(coalesce(sum({sign}CAST(_menura_a{place} AS {word})), 0) AS {word})"


def _shown(plan: Plan, states: str) -> str:
    """The view's columns, and its own, of groups' states."""
    chosen = []
    for place, each in enumerate(plan.outputs):
        name = quoted(each.name)
        if each.aggregate is Aggregate.SUM:
            chosen.append(
                f"CASE WHEN _menura_c{place} > 0 THEN CAST(_menura_s{place} AS {type_word(each.type)}) END AS {name}"
            )
        elif each.aggregate is Aggregate.AVG:
            mean = average(f"_menura_s{place}", f"_menura_c{place}", each.type)
            chosen.append(f"CASE WHEN _menura_c{place} > 0 THEN {mean} END AS {name}")
        else:
            chosen.append(f"CAST({name} AS {type_word(each.type)}) AS {name}")
    chosen += [name for name, _ in hidden(plan)]
    return f"SELECT {', '.join(chosen)} FROM ({states})"  # noqa: S608  (quoted names)


def delta_query(plan: Plan, gone: str, added: str) -> str:
    """What rows that went and came do to their groups: counts and sums to be added, extremes that went or came."""
    chosen = [quoted(each.name) for each in plan.groups]
    both = f"(SELECT *, -1 AS _menura_w FROM {gone} UNION ALL SELECT *, 1 AS _menura_w FROM {added})"  # noqa: S608
    states = [*chosen, f"CAST(sum(_menura_w) AS BIGINT) AS {ROWS}"]
    for place, each in enumerate(plan.outputs):
        argument = f"_menura_a{place}"
        counted = f"CAST(sum(CASE WHEN {argument} IS NULL THEN 0 ELSE _menura_w END) AS BIGINT)"
        if each.aggregate is Aggregate.COUNT:
            states.append(f"{counted} AS {quoted(each.name)}")
        elif each.aggregate in _SUMMED:
            word = type_word(sum_type(each))
            signed = f"CASE WHEN _menura_w > 0 THEN CAST({argument} AS {word}) ELSE -CAST({argument} AS {word}) END"
            states += [
                f"CAST(coalesce(sum({signed}), 0) AS {word}) AS _menura_s{place}",
                f"{counted} AS _menura_c{place}",
            ]
        elif each.aggregate in _EXTREMES:
            states += [
                f"{each.aggregate}({argument}) FILTER (WHERE _menura_w {sign} 0) AS _menura_{name}{place}"
                for sign, name in ((">", "came"), ("<", "went"))
            ]
    return f"SELECT {', '.join(states)} FROM {both} GROUP BY {', '.join(chosen)}"  # noqa: S608


def changed_group_query(plan: Plan, delta: str, held: str) -> str:
    """The groups after a delta, with `ANEW`."""
    states = [f"d.{quoted(each.name)} AS {quoted(each.name)}" for each in plan.groups]
    states.append(f"coalesce(h.{ROWS}, 0) + d.{ROWS} AS {ROWS}")
    anew = ["FALSE"]
    for place, each in enumerate(plan.outputs):
        name = quoted(each.name)
        if each.aggregate is Aggregate.COUNT:
            states.append(f"coalesce(h.{name}, 0) + d.{name} AS {name}")
        elif each.aggregate in _SUMMED:
            word = type_word(sum_type(each))
            states += [
                f"CAST(coalesce(h._menura_s{place}, 0) + d._menura_s{place} AS {word}) AS _menura_s{place}",
                f"coalesce(h._menura_c{place}, 0) + d._menura_c{place} AS _menura_c{place}",
            ]
        elif each.aggregate in _EXTREMES:
            best, beats = ("least", "<=") if each.aggregate is Aggregate.MIN else ("greatest", ">=")
            states.append(f"{best}(h.{name}, d._menura_came{place}) AS {name}")
            anew.append(f"coalesce(d._menura_went{place} {beats} h.{name}, d._menura_went{place} IS NOT NULL)")
    states.append(f"({' OR '.join(anew)}) AS {ANEW}")
    on = same_key("d", "h", [each.name for each in plan.groups])
    return f"SELECT {', '.join(states)} FROM {delta} d LEFT JOIN {held} h ON {on}"  # noqa: S608


def settled_query(plan: Plan, changed: str) -> str:
    """Of changed groups those that have rows and need not be found anew."""
    return _shown(plan, f"SELECT * FROM {changed} WHERE {ROWS} > 0 AND NOT {ANEW}")  # noqa: S608


def is_impossible(plan: Plan) -> str:
    """A condition: a group has fewer rows or values than none, so that what is held is not what was computed."""
    negative = [
        f"{ROWS} < 0",
        *(f"_menura_c{place} < 0" for place, each in enumerate(plan.outputs) if each.aggregate in _SUMMED),
    ]
    return " OR ".join(negative)


def columns_of(plan: Plan) -> list[tuple[str, str]]:
    """All of the view's, with their types as Arrow C format strings."""
    return [*((each.name, each.type) for each in plan.outputs), *hidden(plan)]


def same_key(left: str, right: str, key: Iterable[str]) -> str:
    return " AND ".join(f"{left}.{quoted(name)} IS NOT DISTINCT FROM {right}.{quoted(name)}" for name in key)


def difference_query(names: Sequence[str], key: Sequence[str], old: str, new: str) -> str:
    """Rows that differ: a number `i`, whether each `was` and `will` be, its columns as o{place} and n{place}."""
    befores = [f"o.{quoted(name)} AS o{place}" for place, name in enumerate(names)]
    afters = [f"n.{quoted(name)} AS n{place}" for place, name in enumerate(names)]
    differs = " OR ".join(f"o.{quoted(name)} IS DISTINCT FROM n.{quoted(name)}" for name in names if name not in key)
    query = (
        "SELECT row_number() OVER () AS i, o._menura_has IS NOT NULL AS was, n._menura_has IS NOT NULL AS will,"  # noqa: S608
        f" {', '.join([*befores, *afters])}"
        f" FROM (SELECT *, 1 AS _menura_has FROM {old}) o FULL OUTER JOIN (SELECT *, 1 AS _menura_has FROM {new}) n"
        f" ON {same_key('o', 'n', key)} WHERE o._menura_has IS NULL OR n._menura_has IS NULL"
    )
    return f"{query} OR {differs}" if differs else query


def same_query(chosen: Sequence[str], names: Sequence[str], key: Sequence[str], old: str, differences: str) -> str:
    """Of rows that were there those that do not differ; `names` are those that differences have."""
    places = {name: place for place, name in enumerate(names)}
    on = " AND ".join(f"h.{quoted(name)} IS NOT DISTINCT FROM d.o{places[name]}" for name in key)
    columns = ", ".join(f"h.{quoted(name)}" for name in chosen)
    return f"SELECT {columns} FROM {old} h ANTI JOIN (SELECT * FROM {differences} WHERE was) d ON {on}"  # noqa: S608


def insert_query(names: Sequence[str], rows: str, above_gsn: int) -> str:
    """Changes of a view that has no row yet, as `change_query` gives them."""
    columns = ", ".join(map(quoted, names))
    number = f"row_number() OVER () + {above_gsn}"
    return f"SELECT 'insert' AS {KIND}, {number} AS {NUMBER}, {columns} FROM {rows}"  # noqa: S608  (quoted names)


def change_query(names: Sequence[str], differences: str, above_gsn: int) -> str:
    """Changes as a changelog has them: kind, number and columns."""
    olds = ", ".join(f"o{place} AS {quoted(name)}" for place, name in enumerate(names))
    news = ", ".join(f"n{place} AS {quoted(name)}" for place, name in enumerate(names))
    parts = [
        ("delete", olds, "was AND NOT will"),
        ("update_preimage", olds, "was AND will"),
        ("update_postimage", news, "was AND will"),
        ("insert", news, "will AND NOT was"),
    ]
    return " UNION ALL ".join(
        f"SELECT '{kind}' AS {KIND}, i + {above_gsn} AS {NUMBER}, {columns} FROM {differences} WHERE {which}"  # noqa: S608
        for kind, columns, which in parts
    )
