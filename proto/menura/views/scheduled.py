"""Views that are computed whole at intervals: queries that can't be followed change by change, run by Spark SQL.

Comes in: a text that begins with SCHEDULE EVERY n MINUTES, HOURS or DAYS. Goes out: the interval, the tables and views
that the query reads, its columns, and the query itself with other names for these; or a `ViewRefused` with the place.

The query may be any that Spark SQL has over tables and views: joins of any kind, sub-queries, WITH, windows, UNION, and
functions that sqlglot knows. What is given to Spark is written from sqlglot's tree, never the user's own text, so what
is not checked is not run. Refused are tables by a path or a function, scripts, hints, and functions that sqlglot does
not know: among these are Spark's calls of Java (reflect, java_method) and those that read files. Pure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from menura.change_batch import is_reserved
from menura.naming import lake_column
from menura.views.definition import Column, InputName, Shape
from menura.views.expressions import UNKNOWN
from menura.views.parsing import MOST_COLUMNS, input_name, read_tree, refuse

LEAST_SECONDS, MOST_SECONDS = 60, 31 * 86_400
MOST_TABLES = 32
#: what a refusal may recommend
SCHEDULE = "SCHEDULE EVERY 1 HOUR AS "
HOW = (
    f"Where it need not follow each change, begin the text with {SCHEDULE.strip()}: lakes compute it whole with Spark"
    " SQL each hour"
)
#: before the names that WITH gives
_WITH = "menura_with_"
_BEGIN = re.compile(r"\s*SCHEDULE\s+EVERY\s+(\d{1,6})\s+(MINUTE|HOUR|DAY)S?\s+(?:AS\s+)?", re.IGNORECASE)
_WORD = re.compile(r"\s*SCHEDULE\b", re.IGNORECASE)
_SECONDS = {"MINUTE": 60, "HOUR": 3600, "DAY": 86_400}
#: functions of Spark that sqlglot has no class for
_KNOWN = frozenset({"now", "format_number", "make_date", "crc32", "bround", "positive", "negative", "nullifzero"})
_REFUSED: dict[type[exp.Expression], str] = {
    exp.QueryTransform: "no script: TRANSFORM",
    exp.Hint: "no hint",
    exp.TableSample: "no TABLESAMPLE",
    exp.Version: "no VERSION AS OF: it reads the cut that it is computed at",
    exp.Parameter: "no parameter",
    exp.Placeholder: "no parameter",
    exp.SessionParameter: "no parameter",
    exp.Into: "no INTO",
    exp.Command: "no command",
    exp.ReadCSV: "no file",
    exp.ReadParquet: "no file",
    exp.Create: "no statement beside its query",
    exp.Insert: "no statement beside its query",
}


@dataclass(frozen=True, slots=True)
class ScheduledQuery:
    every_seconds: int
    #: each once, in the order of the text
    inputs: tuple[InputName, ...]
    #: of the view
    columns: tuple[str, ...]
    _tree: exp.Select | exp.SetOperation

    @property
    def shape(self) -> Shape:
        """What a view on this one is planned with; its rows are told apart by all of their columns."""
        return Shape(tuple(Column(name, UNKNOWN) for name in self.columns), self.columns)

    def text(self, named: Callable[[InputName], str]) -> str:
        """The query for Spark, with these names for its tables and views.

        >>> query = read_schedule("SCHEDULE EVERY 2 HOURS AS SELECT upper(o.note) AS note FROM shop.app.orders o")
        >>> query.every_seconds, query.text(lambda name: "t0")
        (7200, 'SELECT UPPER(`o`.`note`) AS `note` FROM `t0` AS `o`')
        """
        tree = self._tree.copy()
        names = {id(table): named(input_name(table)) for table in _tables(tree)}
        for table in list(tree.find_all(exp.Table)):
            # a name of WITH where that does not hold is no table of Spark's own catalog
            name, alias = names.get(id(table), f"{_WITH}{table.name.lower()}"), table.alias_or_name
            table.set("catalog", None)
            table.set("db", None)
            table.set("this", exp.to_identifier(name, quoted=True))
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        for each in tree.find_all(exp.CTE):
            each.args["alias"].set("this", exp.to_identifier(f"{_WITH}{each.alias.lower()}", quoted=True))
        return str(tree.sql(dialect="spark", identify=True, comments=False))


def is_scheduled(sql: str) -> bool:
    """
    >>> is_scheduled("schedule every 1 hour as SELECT 1"), is_scheduled("SELECT o.schedule FROM o")
    (True, False)
    """
    return _WORD.match(sql) is not None


def read_schedule(sql: str) -> ScheduledQuery:
    """Raises `ViewRefused`."""
    begin = _BEGIN.match(sql)
    if begin is None:
        refuse("a schedule is SCHEDULE EVERY n MINUTES, HOURS or DAYS, then AS and the query")
    every = int(begin[1]) * _SECONDS[begin[2].upper()]
    if not LEAST_SECONDS <= every <= MOST_SECONDS:
        refuse("a view is computed at least once in 31 days, at most once a minute")
    # its place stays what it was
    tree = read_tree(re.sub(r"[^\n]", " ", begin[0]) + sql[begin.end() :])
    if not isinstance(tree, exp.Select | exp.SetOperation):
        refuse("a view that is computed at intervals is one query")
    _check_parts(tree)
    inputs = tuple(dict.fromkeys(map(input_name, _tables(tree))))
    if not inputs:
        refuse("a view reads a table or a view: there is none in its query")
    if len(inputs) > MOST_TABLES:
        refuse(f"a view that is computed at intervals reads at most {MOST_TABLES} tables")
    return ScheduledQuery(every, inputs, _columns(tree), tree)


def _tables(tree: exp.Expression) -> list[exp.Table]:
    """Without those that WITH names."""
    within = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    found = [table for table in tree.find_all(exp.Table) if len(table.parts) > 1 or table.name.lower() not in within]
    return sorted(found, key=_begins)


def _begins(table: exp.Table) -> int:
    return next((int(each.meta["start"]) for each in table.walk() if "start" in each.meta), 0)


def _check_parts(tree: exp.Expression) -> None:
    for node in tree.walk():
        for kind, words in _REFUSED.items():
            if isinstance(node, kind):
                refuse(f"a view has {words}", node)
        if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc) and node.name.lower() not in _KNOWN:
            refuse(f"{node.name[:80]} is not among the functions that a view may call", node)
        if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
            refuse("a view reads tables and views by their names alone", node)
        if isinstance(node, exp.Dot) and any(isinstance(each, exp.Func) for each in (node.this, node.expression)):
            refuse("a function is called by its name alone", node)


def _columns(tree: exp.Select | exp.SetOperation) -> tuple[str, ...]:
    found: list[str] = []
    for item in tree.selects:
        at = item if isinstance(item, exp.Expression) else None
        if item.is_star:
            refuse("the columns are named one by one: * would be others after a change of the table", at)
        name = item.alias_or_name
        if not name:
            refuse("a computed column needs a name: AS name", at)
        if lake_column(name) != name or is_reserved(name) or len(name) > 128:
            refuse(f"a column can't be called {name[:80]!r} in the lake", at)
        if name.lower() in {each.lower() for each in found}:
            refuse(f"two columns are called {name}", at)
        found.append(name)
    if not 0 < len(found) <= MOST_COLUMNS:
        refuse(f"a view has 1 to {MOST_COLUMNS} columns")
    return tuple(found)
