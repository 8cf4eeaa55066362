"""For users: the same table of many sources or databases, read as one: all rows, each with the table that it is of.

Comes in: a `LakeCut`, whose tables are shards of one: so all of them are at one vector of cuts. Goes out: their rows as
Arrow, as a Spark DataFrame, or as a statement for SQL, in the columns that any of them has, in types that hold all
their values, with `_menura_source`, `_menura_database` and `_menura_table` before them. With these in front a shard's
key tells all rows apart; `_gsn` orders those of one source alone. Nothing is written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import Schema

from spark_sink.errors import ShardsDiffer, TableNotInLake
from spark_sink.lake.delta_table import read_layout
from spark_sink.lake.tail import Rows
from spark_sink.landed.lake_schema import fit, grown
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.reading import list_tables, own_columns
from spark_sink.reading_at import LakeCut, lake_at
from spark_sink.work import TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FROM = {f"{OWN_PREFIX}{part}": part for part in ("source", "database", "table")}
_FROM_FIELDS = [pa.field(name, pa.string()) for name in FROM]
_READING = "reading tables as one"


@dataclass(frozen=True, slots=True)
class Shards:
    """Tables of one tenant as one."""

    at: LakeCut
    #: of the rows, without `FROM`
    columns: pa.Schema
    #: which columns tell all rows apart; empty where a shard has no key
    key: tuple[str, ...]

    @classmethod
    def of(cls, at: LakeCut) -> "Shards":
        """Raises `ShardsDiffer` where these are not tables of one kind."""
        if not at.tables:
            raise TableNotInLake(_READING, f"{at.lake} has none of them at that cut")
        first = at.tables[0].table
        columns, key = _shape(at.rows(first))
        for each in at.tables[1:]:
            more, other_key = _shape(at.rows(each.table))
            columns, unfit = grown(columns, more)
            if unfit is not None:
                raise _differ(first, each.table, f"no type holds the values of both columns {unfit}")
            if [name.lower() for name in key] != [name.lower() for name in other_key]:
                raise _differ(first, each.table, f"their keys are {_listed(key)} and {_listed(other_key)}")
            if each.table.tenant != first.tenant:
                raise _differ(first, each.table, "they are of two tenants")
        return cls(at, columns, (*FROM, *key) if key else ())

    def tables(self) -> Iterator[pa.Table]:
        """The rows of one shard after the other."""
        schema = pa.schema([*_FROM_FIELDS, *self.columns])
        for each in self.at.tables:
            rows = self.at.arrow(each.table)
            for place, (name, part) in enumerate(FROM.items()):
                rows = rows.add_column(place, name, pa.repeat(getattr(each.table, part), rows.num_rows))
            yield fit(rows, schema)

    def arrow(self) -> pa.Table:
        return pa.concat_tables(self.tables())

    def frame(self, session: "SparkSession") -> "DataFrame":
        """The same as a Spark DataFrame."""
        frames = [self.at.frame(session, each.table).selectExpr(*self._chosen(each.table)) for each in self.at.tables]
        return reduce(lambda one, other: one.unionAll(other), frames)

    def create_view(self, session: "SparkSession", name: str) -> None:
        """A temporary view of the session for SQL."""
        self.frame(session).createOrReplaceTempView(_ticked(name))

    def statement(self, name: str) -> str:
        """One of Spark SQL that makes the same view, in any session that has Delta. Raises `TableNotAtCut`."""
        selects = [self.at.select(each, ", ".join(self._chosen(each.table))) for each in self.at.tables]
        return f"CREATE OR REPLACE TEMPORARY VIEW {_ticked(name)} AS\n" + "\nUNION ALL\n".join(selects) + ";"

    def _chosen(self, table: TableId) -> list[str]:
        """All columns of a shard in Spark SQL."""
        held = {field.name.lower(): field for field in _shape(self.at.rows(table))[0]}
        chosen = [f"{_text(getattr(table, part))} AS {_ticked(name)}" for name, part in FROM.items()]
        for field, delta in zip(self.columns, Schema.from_arrow(self.columns).fields, strict=True):
            own = held.get(field.name.lower())
            value = _ticked(own.name) if own is not None else "NULL"
            is_cast = own is None or own.type != field.type
            chosen.append(f"{f'CAST({value} AS {delta.type.type})' if is_cast else value} AS {_ticked(field.name)}")
        return chosen


def shards_at(
    lake: str, patterns: Iterable[str], *, at_us: int | None = None, allow_incomplete: bool = False
) -> Shards:
    """The tables that fit TENANT/SOURCE/DATABASE/TABLE with * and ?, as one; for when see `reading_at.lake_at`."""
    groups = groups_of(lake, patterns)
    return Shards.of(lake_at(lake, groups=groups, at_us=at_us, allow_incomplete=allow_incomplete))


def groups_of(lake: str, patterns: Iterable[str]) -> list[tuple[str, ...]]:
    """The names of the lake's tables that fit, for `lake_at`. Raises `TableNotInLake` where none does."""
    found: list[tuple[str, ...]] = []
    known = list_tables(lake)
    for pattern in patterns:
        fitting = [table for table in known if fnmatchcase(table.default_folder, pattern)]
        if not fitting:
            raise TableNotInLake(
                _READING,
                f"no table of {lake} fits {pattern}",
                remedy="See which tables there are with spark_sink.reading.list_tables",
            )
        found += [(each.tenant, each.source, each.database, each.table) for each in fitting]
    return list(dict.fromkeys(found))


def _shape(rows: Rows) -> tuple[pa.Schema, tuple[str, ...]]:
    return pa.schema([rows.schema.field(name) for name in own_columns(rows)]), read_layout(rows.current).key


def _differ(one: TableId, other: TableId, how: str) -> ShardsDiffer:
    return ShardsDiffer(
        _READING,
        f"{one} and {other} are no shards of one table: {how}",
        data="Nothing was read",
        remedy="Name tables that are; or read each by itself",
    )


def _listed(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
