"""Which pipes of a file would write to one place, by what the file says.

Comes in: pipes. Goes out: the place that two of them share, in words. Topics have no tenant, tables in another database
neither tenant nor source, and a cache has one position: the rows of two pipes would be mixed there, and each would take
the other's for its own. Nothing is asked: two names of one server are two servers here, and so is a reference.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Protocol

from spark_sink.pipes.selection import Name, Pattern, Selection

_KAFKA = "kafka"
#: producers of this package, and names of entry points; classes that are named otherwise may keep tables apart
_OWN_CLASSES = "spark_sink.plugins."
_CACHE = ("row-cache", "spark_sink.plugins.row_cache:RowCache")


class Writes(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def producer(self) -> str: ...

    @property
    def options(self) -> Mapping[str, str]: ...

    @property
    def selection(self) -> Selection: ...


def shared(pipes: Sequence[Writes]) -> str | None:
    """What is wrong, and what to do; None: nothing is."""
    for one, other in combinations(pipes, 2):
        if found := _shared(one, other):
            return f"pipes {one.name} and {other.name} {found}"
    return None


def _shared(one: Writes, other: Writes) -> str | None:
    if one.producer == other.producer == _KAFKA and _brokers(one) & _brokers(other):
        if both := _both(one.selection, other.selection, _one_topic):
            return f"would write {both} to one topic: divide their tables, or give one of them another cluster"
    elif (database := _database(one)) is not None and database == _database(other):
        if both := _both(one.selection, other.selection, _one_table):
            return f"would write {both} to one table: divide their tables, or give one of them another database"
    elif {one.producer, other.producer} <= set(_CACHE) and _file(one) == _file(other):
        return f"have the file {one.options.get('file')}, which has one position: give each a file of its own"
    return None


def _brokers(of: Writes) -> set[str]:
    return {broker.strip().lower() for broker in of.options["brokers"].split(",")}


def _database(of: Writes) -> tuple[str, str, str] | None:
    """None: it is none. A port that is left out is another one than each that is written."""
    options, is_own = of.options, ":" not in of.producer or of.producer.startswith(_OWN_CLASSES)
    if not is_own or not {"host", "database"} <= set(options):
        return None
    return options["host"].lower(), options.get("port", ""), options["database"].lower()


def _file(of: Writes) -> Path:
    return Path(of.options.get("file", "")).absolute()


class _Meeting(Protocol):
    def __call__(self, one: Pattern, other: Pattern) -> tuple[Sequence[Name], Sequence[Name]] | None:
        """Of a table of the first pattern that has one place with one of the other: names, each of which has its
        database, and its table. None: there is none.
        """


def _one_topic(one: Pattern, other: Pattern) -> tuple[Sequence[Name], Sequence[Name]] | None:
    if one.source != other.source or not one.database.meets(other.database) or not one.table.meets(other.table):
        return None
    return (one.database, other.database), (one.table, other.table)


def _one_table(one: Pattern, other: Pattern) -> tuple[Sequence[Name], Sequence[Name]] | None:
    """Servers may not tell small letters from others."""
    if not one.table.lowered().meets(other.table.lowered()):
        return None
    is_exact = one.table.lowered() == one.table and other.table.lowered() == other.table
    return (one.database,), ((one.table, other.table) if is_exact else (one.table,))


def _both(one: Selection, other: Selection, meeting: _Meeting) -> str | None:
    """Patterns by which some table of each may have one place, less what is left out for sure."""
    for first, second in product(one.wanted, other.wanted):
        there, back = meeting(first, second), meeting(second, first)
        if there is None or back is None or _is_out(one, first, there) or _is_out(other, second, back):
            continue
        return first.word if first.word == second.word else f"{first.word} and {second.word}"
    return None


def _is_out(of: Selection, wanted: Pattern, names: tuple[Sequence[Name], Sequence[Name]]) -> bool:
    databases, tables = names
    return any(
        (without.tenant, without.source) == (wanted.tenant, wanted.source)
        and any(map(without.database.covers, databases))
        and any(map(without.table.covers, tables))
        for without in of.without
    )
