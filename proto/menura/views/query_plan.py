"""How a view that is recomputed on a schedule is computed: its query as the engine's text, of parts that are known.

Comes in: the text, and of each table its columns. Goes out: a `QueryPlan`, or a `ViewRefused` with the reason and its
place. Pure.

The engine's text is put together here of constant words, of names that are quoted here, of literals that
`expressions` writes, and of nothing else: no part of the user's text is passed on, and what no function here knows is
refused. Tables are called t0, t1, ... in the order of their names. Known are:

* SELECT, DISTINCT, WITH, sub-queries in FROM, joins of any kind ON anything, WHERE, GROUP BY, HAVING, UNION, INTERSECT,
  EXCEPT, and ORDER BY with LIMIT, whose ties go by the other columns.
* EXISTS, IN and single values of sub-queries, which may name columns around them.
* The aggregates of views that are followed, DISTINCT in count, and windows with these, ranks, lag, lead, first_value
  and last_value.
* The expressions of `expressions`, whose value is that of Spark SQL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from menura.views.definition import Column, InputName, Shape
from menura.views.expressions import MOST_CHARS
from menura.views.parsing import MOST_COLUMNS, input_name, is_place, refuse, table_of, whole_number
from menura.views.parts import check_parts
from menura.views.plan import alias_of, named
from menura.views.query_scope import MOST_TABLES, OWN, QueryScope, Reader, Relation, bare
from menura.views.scheduled import read_scheduled
from menura.views.terms import DOUBLE, FLOAT, NOTHING, Term, quoted, type_word

MOST_LIMIT = 10_000_000
_CLAUSES = {
    "expressions", "from", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "with", "with_",
}  # fmt: skip
_OF_SET = {"this", "expression", "distinct", "order", "limit", "with", "with_"}
_JOINS = {
    ("", ""): "INNER", ("", "INNER"): "INNER", ("", "CROSS"): "CROSS", ("LEFT", ""): "LEFT", ("LEFT", "OUTER"): "LEFT",
    ("RIGHT", ""): "RIGHT", ("RIGHT", "OUTER"): "RIGHT", ("FULL", ""): "FULL", ("FULL", "OUTER"): "FULL",
    ("LEFT", "SEMI"): "SEMI", ("", "SEMI"): "SEMI", ("LEFT", "ANTI"): "ANTI", ("", "ANTI"): "ANTI",
}  # fmt: skip
_NAME_IT = "Name the column with its table, or give the alias another name"
_SETS: dict[type, str] = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}

#: of the names that WITH gives, as the text calls them
Within = Mapping[str, Relation]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    every_seconds: int
    #: in the order of the engine's names, with the columns that are read
    inputs: tuple[tuple[InputName, tuple[str, ...]], ...]
    outputs: tuple[Column, ...]
    #: of the view, by its columns' names
    key: tuple[str, ...]
    #: for the engine
    sql: str

    @property
    def shape(self) -> Shape:
        """What a view on this one is planned with."""
        return Shape(self.outputs, self.key)


def engine_name(place: int) -> str:
    """Of an input."""
    return f"t{place}"


def plan_query(sql: str, shapes: Mapping[InputName, Shape]) -> QueryPlan:
    """Raises `ViewRefused`.

    >>> people = InputName("shop", "app", "people")
    >>> text = "SCHEDULE EVERY 1 HOUR KEY (name) AS SELECT DISTINCT p.name FROM shop.app.people p"
    >>> plan = plan_query(text, {people: Shape((Column("id", "l"), Column("name", "u")), ("id",))})
    >>> plan.sql
    'SELECT DISTINCT CAST("p"."name" AS VARCHAR) AS "name" FROM "t0" AS "p"'
    """
    text = read_scheduled(sql)
    if sum(1 for _ in text.query.find_all(exp.Table)) > MOST_TABLES:
        refuse(f"a query of a view names at most {MOST_TABLES} tables")
    check_parts(text.query)
    names = sorted(shapes)
    reader = Reader({name: engine_name(place) for place, name in enumerate(names)}, shapes, _query)
    try:
        found = _query(reader, text.query, None, {}, is_whole=True)
    except RecursionError:
        refuse("the text is nested too deeply")
    key = _key(text.key, found)
    inputs = tuple((name, reader.columns_of(name)) for name in names)
    columns = tuple(Column(column.name, column.type) for column in found.columns)  # integers of the lake have 64 bits
    return QueryPlan(text.every_seconds, inputs, columns, key, found.sql)


def _key(wanted: tuple[str, ...], found: Relation) -> tuple[str, ...]:
    by_name = {column.name.lower(): column for column in found.columns}
    missing = [name for name in wanted if name.lower() not in by_name]
    if missing:
        refuse(f"the view's key has {missing[0][:80]}, which is none of its columns")
    key = [by_name[name.lower()] for name in wanted or found.groups] or list(found.columns)
    if len(set(key)) < len(key):
        refuse("the view's key has a column twice")
    for column in key:
        if column.type in (FLOAT, DOUBLE):
            refuse(
                f"{column.name} is a float, and rows are told apart by it: there is more than one zero",
                remedy="Name a key without it: KEY (columns) behind the interval, or --key",
            )
    return tuple(column.name for column in key)


def _query(
    reader: Reader, node: exp.Expression, outer: QueryScope | None, within: Within, *, is_whole: bool = False
) -> Relation:
    """`is_whole`: its columns are the view's."""
    if isinstance(node, exp.Subquery):
        _check_clauses(node, {"this"}, "a query in parentheses")
        return _query(reader, node.this, outer, within, is_whole=is_whole)
    with reader.nested(node):
        begin, within = _with(reader, node, within)
        if isinstance(node, exp.Select):
            found = _select(reader, node, outer, within, is_whole=is_whole)
        elif type(node) in _SETS:
            found = _set(reader, node, outer, within, is_whole=is_whole)
        else:
            refuse(f"{type(node).__name__} is not among what queries of views have", node)
    if len(begin) + len(found.sql) > MOST_CHARS:
        refuse("the text is nested too deeply", node)
    return replace(found, sql=begin + found.sql)


def _check_clauses(node: exp.Expression, known: set[str], what: str) -> None:
    for clause, value in node.args.items():
        if value and clause not in known:
            refuse(f"{what} has no {clause.upper().strip('_')}", value if isinstance(value, exp.Expression) else node)


def _with(reader: Reader, node: exp.Expression, within: Within) -> tuple[str, Within]:
    found = node.args.get("with_") or node.args.get("with")
    if found is None:
        return "", within
    _check_clauses(found, {"expressions"}, "WITH")
    texts, known = [], dict(within)
    for each in found.expressions:
        _check_clauses(each, {"this", "alias"}, "WITH")
        if each.args["alias"].args.get("columns"):
            refuse("a name of WITH renames no columns", each)
        inner = _query(reader, each.this, None, known)
        name = reader.new_name()
        texts.append(f"{quoted(name)} AS ({inner.sql})")
        known[each.alias.lower()] = Relation(quoted(name), inner.columns)
    return f"WITH {', '.join(texts)} ", known


def _select(reader: Reader, node: exp.Select, outer: QueryScope | None, within: Within, *, is_whole: bool) -> Relation:
    _check_clauses(node, _CLAUSES, "a query of a view")
    scope, source = _from(reader, node, outer, within)
    where = node.args.get("where")
    if where is not None:
        source += f" WHERE {scope.condition(where.this).sql}"
    items = [_item(each, place, is_whole=is_whole) for place, each in enumerate(node.expressions)]
    if not 0 < len(items) <= MOST_COLUMNS:
        refuse(f"a query has 1 to {MOST_COLUMNS} columns", node)
    group, having = node.args.get("group"), node.args.get("having")
    texts: list[str] = []
    if group is not None or having is not None or any(reader.has_aggregate(value) for _, value in items):
        texts = _grouped(group, scope, dict(items))
        scope = replace(scope, grouped=frozenset(texts))
        source += f" GROUP BY {', '.join(texts)}" if texts else ""
    _check_aliases(node, scope)
    if having is not None:
        source += f" HAVING {scope.condition(having.this).sql}"
    terms = [replace(scope, has_windows=True).term(value) for _, value in items]
    columns = tuple(Column(name, term.type, term.digits) for (name, _), term in zip(items, terms, strict=True))
    _check_columns(columns, node, is_whole=is_whole)
    chosen = ", ".join(f"{_cast(term)} AS {quoted(name)}" for (name, _), term in zip(items, terms, strict=True))
    distinct = node.args.get("distinct")
    if distinct is not None:
        _check_clauses(distinct, set(), "DISTINCT")
        _check_floats(columns, node)
    begin = "SELECT DISTINCT" if distinct is not None else "SELECT"
    outputs = {name: term.sql for (name, _), term in zip(items, terms, strict=True)}
    names = {text: name for name, text in outputs.items()}
    groups = tuple(names[text] for text in texts if text in names)
    found = Relation(f"{begin} {chosen} {source}", columns, groups=groups if len(groups) == len(texts) else ())
    return _limited(node, found, outputs, scope)


def _check_aliases(node: exp.Select, scope: QueryScope) -> None:
    """In a sub-query Spark SQL takes a name for an alias of the same SELECT before a column of a query around it."""
    if scope.outer is None:
        return
    aliases = {each.alias.lower() for each in node.expressions if isinstance(each, exp.Alias)}
    clauses = [node.args.get("having"), node.args.get("order"), *node.expressions]
    for column in (column for each in clauses if each is not None for column in each.find_all(exp.Column)):
        if not column.table and column.name.lower() in aliases and not scope.has(column):
            refuse(f"{column.name} may be the column with this alias, or one of a query around it", column, _NAME_IT)


def _cast(term: Term) -> str:
    return term.sql if term.type == NOTHING else f"CAST({term.sql} AS {type_word(term.type)})"


def _item(item: exp.Expression, place: int, *, is_whole: bool) -> tuple[str, exp.Expression]:
    if is_whole or item.is_star:
        return named(item)
    name = item.alias_or_name if isinstance(item, exp.Alias | exp.Column) else ""
    if len(name) > 128 or not name.isprintable():
        refuse("a column's name has at most 128 signs that can be shown", item)
    return name or f"column {place}", item.this if isinstance(item, exp.Alias) else item


def _check_columns(columns: tuple[Column, ...], node: exp.Expression, *, is_whole: bool) -> None:
    names = [column.name.lower() for column in columns]
    if len(set(names)) < len(names):
        refuse("two columns of a query have one name", node)
    if is_whole and any(column.type == NOTHING for column in columns):
        refuse("a column is always NULL: cast it", node)


def _check_floats(columns: tuple[Column, ...], node: exp.Expression) -> None:
    for column in columns:
        if column.type in (FLOAT, DOUBLE):
            refuse(f"rows are told apart by {column.name}, a float: there is more than one zero", node)


def _from(reader: Reader, node: exp.Select, outer: QueryScope | None, within: Within) -> tuple[QueryScope, str]:
    found = node.args.get("from_") or node.args.get("from")
    if found is None:
        refuse("a query of a view reads a table: there is no FROM", node)
    alias, relation = _source(reader, found.this, outer, within)
    relations, text = {alias: relation}, f"FROM {relation.sql} AS {quoted(alias)}"
    is_crossed = False
    for join in node.args.get("joins") or ():
        kind = _kind(join)
        if is_crossed and kind in ("RIGHT", "FULL"):
            refuse(f"a {kind} JOIN stands behind a CROSS JOIN or a comma: have a sub-query of one of them", join)
        is_crossed |= kind == "CROSS"
        alias, relation = _source(reader, join.this, outer, within)
        if alias in relations:
            refuse("two tables have one name here: give them aliases", join.this)
        both = {**relations, alias: relation}
        text += f" {kind} JOIN {relation.sql} AS {quoted(alias)}"
        on = join.args.get("on")
        if on is not None:
            of_both = QueryScope.over(reader, both, outer, within)
            # of other joins Spark SQL takes NULL NOT IN a sub-query for true
            text += f" ON {(of_both.condition(on) if kind == 'INNER' else of_both.truth(on)).sql}"
        elif kind != "CROSS":
            refuse("a table is joined ON a condition, or by CROSS JOIN", join.this)
        relations = relations if kind in ("SEMI", "ANTI") else both
    return QueryScope.over(reader, relations, outer, within), text


def _kind(join: exp.Join) -> str:
    for clause in ("using", "method", "global", "hint", "match_condition", "pivots"):
        if join.args.get(clause):
            refuse(f"a table is joined ON a condition, without {clause.upper()}", join.this)
    side, kind = (str(join.args.get(name) or "") for name in ("side", "kind"))
    if (side, kind) not in _JOINS:
        refuse(f"{side} {kind} JOIN is not among the joins of views", join.this)
    if kind == "CROSS" and join.args.get("on") is not None:
        refuse("CROSS JOIN has no ON", join.this)
    return _JOINS[side, kind]


def _source(reader: Reader, node: exp.Expression, outer: QueryScope | None, within: Within) -> tuple[str, Relation]:
    """What a query reads, under its alias."""
    if isinstance(node, exp.Subquery):
        _check_clauses(node, {"this", "alias"}, "a sub-query")
        if node.args.get("alias") is None or node.args["alias"].args.get("columns"):
            refuse("a sub-query in FROM has an alias, which renames no columns", node)
        inner = _query(reader, node.this, None, within)
        return alias_of(node), Relation(f"({inner.sql})", inner.columns)
    table = table_of(node)
    alias = alias_of(table)
    if len(table.parts) == 1 and table.name.lower() in within:
        return alias, within[table.name.lower()]
    name = input_name(table)
    if name not in reader.names:
        refuse(f"{name} is not known", table)
    return alias, Relation(quoted(reader.names[name]), reader.shapes[name].columns, name)


def _grouped(group: exp.Group | None, scope: QueryScope, items: Mapping[str, exp.Expression]) -> list[str]:
    """The texts of what is grouped by; a column's alias stands for what it is."""
    if group is None:
        return []
    _check_clauses(group, {"expressions"}, "GROUP BY")
    aliases = {name.lower(): value for name, value in items.items()}
    found = []
    for each in group.expressions:
        if is_place(each):
            refuse("GROUP BY names columns, not their places", each)
        is_alias = isinstance(each, exp.Column) and not each.table and not scope.has(each)
        term = scope.term(aliases.get(each.name.lower(), each) if is_alias else each)
        if term.type in (FLOAT, DOUBLE):
            refuse("a group is no float: there is more than one zero", each)
        found.append(term.sql)
    return found


def _set(reader: Reader, node: exp.Expression, outer: QueryScope | None, within: Within, *, is_whole: bool) -> Relation:
    _check_clauses(node, _OF_SET, "a query of a view")
    word = _SETS[type(node)]
    left = _query(reader, node.this, outer, within, is_whole=is_whole)
    right = _query(reader, node.expression, outer, within)
    if len(left.columns) != len(right.columns):
        refuse(f"{word} is of {len(left.columns)} and of {len(right.columns)} columns", node)
    scope = QueryScope.over(reader, {}, None, {})
    columns = []
    for one, other in zip(left.columns, right.columns, strict=True):
        terms = [Term("", each.type, each.digits) for each in (one, other)]
        _, term = scope.unified(terms, node)
        columns.append(Column(one.name, term.type, term.digits))
    _check_columns(tuple(columns), node, is_whole=is_whole)
    if node.args.get("distinct"):
        _check_floats(tuple(columns), node)
    all_ = "" if node.args.get("distinct") else " ALL"
    texts = [_with_types(each, columns) for each in (left, right)]
    found = Relation(f"({texts[0]}) {word}{all_} ({texts[1]})", tuple(columns))
    return _limited(node, found, {}, None)


def _with_types(found: Relation, columns: list[Column]) -> str:
    """The same rows with these names and types."""
    pairs = zip(found.columns, columns, strict=True)
    chosen = [
        f"{_cast(Term(f'{OWN}.{quoted(own.name)}', column.type))} AS {quoted(column.name)}" for own, column in pairs
    ]
    return f"SELECT {', '.join(chosen)} FROM ({found.sql}) AS {OWN}"  # noqa: S608  (quoted names)


def _limited(node: exp.Expression, found: Relation, outputs: Mapping[str, str], scope: QueryScope | None) -> Relation:
    """With ORDER BY and LIMIT; `outputs`: the texts of its columns, by their names."""
    order, limit = node.args.get("order"), node.args.get("limit")
    if limit is None:
        if order is not None:
            refuse("ORDER BY stands with LIMIT alone: a table has no order; order it where it is read", order)
        return found
    if order is None:
        refuse("LIMIT needs ORDER BY: which rows would it be", limit)
    _check_clauses(limit, {"expression"}, "LIMIT")
    number = limit.expression
    if not isinstance(number, exp.Literal) or number.is_string or not number.name.isdecimal():
        refuse("LIMIT is a number", limit)
    count = whole_number(number.name, MOST_LIMIT)
    if count is None:
        refuse(f"LIMIT is at most {MOST_LIMIT}", limit)
    by_name = {column.name.lower(): column.name for column in found.columns}
    names = {text: name for name, text in outputs.items()}
    ordered: dict[str, str] = {}
    for each in order.expressions:
        value = bare(each.this)
        if is_place(value):
            refuse("ORDER BY names columns, not their places", each)
        name = by_name.get(value.name.lower()) if isinstance(value, exp.Column) and not value.table else None
        if name is None and scope is not None:
            _check_meant(value, outputs, scope)
            name = names.get(scope.term(value).sql)
        if name is None:
            refuse("ORDER BY with LIMIT names columns of its query: have it among them", each)
        ordered.setdefault(name, f"{quoted(name)} {QueryScope.direction(each)}")
    ties = [f"{quoted(column.name)} ASC NULLS FIRST" for column in found.columns if column.name not in ordered]
    by = ", ".join([*ordered.values(), *ties])
    return replace(found, sql=f"SELECT * FROM ({found.sql}) AS {OWN} ORDER BY {by} LIMIT {count}")  # noqa: S608


def _check_meant(value: exp.Expression, outputs: Mapping[str, str], scope: QueryScope) -> None:
    """Spark SQL takes a name within ORDER BY for a column of the query before one of its tables."""
    texts = {name.lower(): text for name, text in outputs.items()}
    rows = replace(scope, grouped=None)
    for column in value.find_all(exp.Column):
        text = texts.get(column.name.lower())
        if text is None or column.table:
            continue
        if not scope.has(column) or rows.term(column).sql != text:
            refuse(f"{column.name} within ORDER BY is the query's own column", column, _NAME_IT)
