"""Rows by their names, of which there may be thousands: one parameter, in a statement whose text is always the same.

A list of tuples is a parameter a name. PostgreSQL parses and plans such a statement anew each time: 0.13 seconds for
2,000 names, which a gateway asked for several times a second. A document of JSON is read there in 0.01.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, literal, literal_column, select, tuple_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def among(columns: Sequence[Any], names: Iterable[Sequence[str | int]]) -> ColumnElement[bool]:
    """Whether a row's columns are one of these names, which have a part for each column."""
    document = json.dumps([list(name) for name in names])
    named = _Elements(literal(document, Text)).table_valued("value", name="named")
    parts = (cast(_Part(named.c.value, literal_column(str(at))), column.type) for at, column in enumerate(columns))
    return tuple_(*columns).in_(select(*parts))


class _Elements(FunctionElement[Any]):
    """Of an array in JSON, a row each."""

    name, inherit_cache = "elements", True


class _Part(FunctionElement[str]):
    """Of an array in JSON, the text at a place."""

    name, inherit_cache = "part", True
    type = Text()


@compiles(_Elements, "postgresql")
def _elements_of_postgresql(element: _Elements, compiler: SQLCompiler, **words: object) -> str:
    return f"json_array_elements(CAST({compiler.process(element.clauses, **words)} AS json))"


@compiles(_Elements, "sqlite")
def _elements_of_sqlite(element: _Elements, compiler: SQLCompiler, **words: object) -> str:
    return f"json_each({compiler.process(element.clauses, **words)})"


@compiles(_Part, "postgresql")
def _part_of_postgresql(element: _Part, compiler: SQLCompiler, **words: object) -> str:
    value, at = (compiler.process(clause, **words) for clause in element.clauses)
    return f"({value} ->> {at})"


@compiles(_Part, "sqlite")
def _part_of_sqlite(element: _Part, compiler: SQLCompiler, **words: object) -> str:
    value, at = (compiler.process(clause, **words) for clause in element.clauses)
    return f"json_extract({value}, '$[{at}]')"
