"""Views that are recomputed on a schedule: queries that can't be kept up to date at the cost of what changed.

Comes in: a text that begins with SCHEDULE EVERY n MINUTES, HOURS or DAYS. Goes out: the interval, the columns that
tell rows apart, the query as sqlglot's tree, and what it reads; or a `ViewRefused` with the place. Pure.
"""

import re
from dataclasses import dataclass

from sqlglot import exp

from menura.views.definition import InputName
from menura.views.parsing import input_name, read_tree, refuse

LEAST_SECONDS, MOST_SECONDS = 60, 31 * 86_400
MOST_KEY_COLUMNS = 16
_SECONDS = {"MINUTE": 60, "HOUR": 3600, "DAY": 86_400}
_LETTERS = {word[0].lower(): word for word in _SECONDS}
_WORD = re.compile(r"\s*SCHEDULE\b", re.IGNORECASE)
_BEGIN = re.compile(
    r"\s*SCHEDULE\s+EVERY\s+(\d{1,6})\s+(MINUTE|HOUR|DAY)S?(?:\s+KEY\s*\(([^()]{1,2000})\))?\s+AS\s", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ScheduledText:
    every_seconds: int
    #: as it is named; (): all columns
    key: tuple[str, ...]
    query: exp.Expression
    #: of the query alone
    sql: str


def is_scheduled(sql: str) -> bool:
    """
    >>> is_scheduled("schedule every 1 hour as SELECT 1"), is_scheduled("SELECT o.schedule FROM o")
    (True, False)
    """
    return _WORD.match(sql) is not None


def scheduled(sql: str, every: str, key: tuple[str, ...] = ()) -> str:
    """The view's text of a query, an interval such as 10m, 2h or 1d (`definition.EVERY`), and a key.

    >>> scheduled("SELECT DISTINCT o.note FROM shop.app.orders o", "10m", ("note",))
    'SCHEDULE EVERY 10 MINUTES KEY (note) AS SELECT DISTINCT o.note FROM shop.app.orders o'
    """
    of_key = f" KEY ({', '.join(key)})" if key else ""
    return f"SCHEDULE EVERY {int(every[:-1])} {_LETTERS[every[-1]]}S{of_key} AS {sql}"


def every_said(seconds: int) -> str:
    """
    >>> every_said(600), every_said(3600), every_said(172800)
    ('10 minutes', '1 hour', '2 days')
    """
    word = next(word for word in ("DAY", "HOUR", "MINUTE") if seconds % _SECONDS[word] == 0)
    number = seconds // _SECONDS[word]
    return f"{number} {word.lower()}{'' if number == 1 else 's'}"


def every_seconds_of(sql: str) -> int:
    """Of a text that has a schedule. Raises `ViewRefused`."""
    begin = _BEGIN.match(sql)
    if begin is None:
        refuse(
            "a schedule is SCHEDULE EVERY n MINUTES, HOURS or DAYS, KEY (columns) where rows have one, AS and the query"
        )
    every = int(begin[1]) * _SECONDS[begin[2].upper()]
    if not LEAST_SECONDS <= every <= MOST_SECONDS:
        refuse("a view is recomputed once a minute at the most, and at least once in 31 days")
    return every


def read_scheduled(sql: str) -> ScheduledText:
    """Raises `ViewRefused`."""
    every = every_seconds_of(sql)
    begin = _BEGIN.match(sql)
    assert begin is not None
    key = tuple(name.strip() for name in (begin[3] or "").split(",")) if begin[3] else ()
    if len(key) > MOST_KEY_COLUMNS or not all(key):
        refuse(f"a key has 1 to {MOST_KEY_COLUMNS} columns")
    query = sql[begin.end() :]
    if is_scheduled(query):
        refuse("the text has two schedules", remedy="Leave one of them out")
    # a place stays what it is in the text
    tree = read_tree(re.sub(r"[^\n]", " ", begin[0]) + query)
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        refuse("a view that is recomputed on a schedule is one query")
    return ScheduledText(every, key, tree, query)


def inputs_of_query(sql: str) -> tuple[InputName, ...]:
    """The tables and views that it reads, each once, in their order. Raises `ViewRefused`."""
    tree = read_scheduled(sql).query
    within = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    found: dict[InputName, None] = {}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            refuse("a view reads tables and views by their names alone", table)
        if len(table.parts) > 1 or table.name.lower() not in within:
            found[input_name(table)] = None
    if not found:
        refuse("a view reads a table or a view: there is none in its query")
    return tuple(sorted(found))
