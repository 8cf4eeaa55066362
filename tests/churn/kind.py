"""What `make churn` asks of a kind of source: its servers, tables, and the SQL that changes them; the rest is alike.

`tests.churn.mysql` and `tests.churn.postgresql` have one each.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.conformance.stops import Stop
from tests.live_source import LiveSource

#: keys come from a small space, so that what one transaction deletes another one inserts
KEYS = 400
#: rows whose keys are so much greater are made at the start and not written again: what nobody writes, a lake has to
#: heal by itself
COLD = 100_000
#: name of the table whose last row says how far the lake is
MARKER = "marker"

Dice = random.Random


@dataclass(frozen=True, slots=True)
class Shape:
    """How a table is made, and how its rows are found."""

    columns: str
    #: literals of the key's columns; no key: rows are found by the first column
    key: dict[str, Callable[[Dice], str]]
    options: str = ""
    #: literals of columns that only some values fit
    values: dict[str, Callable[[Dice], str]] | None = None
    #: statements behind CREATE TABLE
    more: tuple[str, ...] = ()


def number(dice: Dice) -> str:
    return str(dice.randrange(KEYS))


#: of each table the columns that a writer may give a value, with their types
Columns = Mapping[str, Mapping[str, str]]
#: the names of all columns that a table has now
Names = Callable[[str], list[str]]
#: statements of one step of DDL
Step = Callable[[Dice, Names], list[str]]


class Session(Protocol):
    """One connection to a source."""

    def columns(self, tables: Mapping[str, Shape]) -> Columns: ...

    def run(self, statements: str) -> None:
        """Statements in one packet; when they are refused, no transaction is left open."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Kind:
    #: by the name that a run gives it: a fresh server
    servers: Mapping[str, Callable[[Path], AbstractContextManager[LiveSource]]]
    #: by ingredient: its tables, in an order in which they can be made
    tables: Mapping[str, Mapping[str, Shape]]
    #: by ingredient: statements before its tables are made, and behind them
    before: Mapping[str, tuple[str, ...]]
    behind: Mapping[str, tuple[str, ...]]
    #: columns of the marker
    marker: str
    #: by ingredient
    steps: Mapping[str, tuple[Step, ...]]
    session: Callable[[LiveSource], Session]
    #: one transaction of a writer: packets that follow each other
    transaction: Callable[[Dice, Mapping[str, Shape], Columns], list[str]]
    #: of the driver
    errors: type[Exception]
    #: what writers and DDL may do to each other
    is_meeting: Callable[[Exception], bool]
    #: a statement that only met locks: it is tried again
    is_locked: Callable[[Exception], bool]
    is_lost: Callable[[Exception], bool]
    #: a name as the server writes it
    quoted: Callable[[str], str]
    #: why its tables may stop, with the agent's settings at their defaults
    stops: tuple[Stop, ...]
    #: ingredients that some servers lack
    lacking: Mapping[str, frozenset[str]]
    #: of the agent's source, by the run's seed
    settings: Callable[[int], Mapping[str, object]] = lambda seed: {}

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(stop.code for stop in self.stops)

    def ingredients(self, server: str) -> tuple[str, ...]:
        return tuple(name for name in self.tables if name not in self.lacking.get(server, ()))

    def shapes(self, server: str, ingredients: frozenset[str]) -> dict[str, Shape]:
        """Tables that are synced."""
        chosen = [name for name in self.ingredients(server) if name in ingredients]
        return {name: shape for one in chosen for name, shape in self.tables[one].items()}
