"""For users and tests: what is in the lake, with Spark or without.

Plain functions over a lake's address. Without Spark they give Arrow, through delta-rs; with a session they give a
DataFrame. A current state comes without the sink's own `_menura_` columns, so it is the source's table with
`_unrepresentable` and `_gsn`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_sink.errors import TableNotInLake
from spark_sink.lake.delta_table import open_table, quoted, scan, schema_of
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.work import CHANGELOG, CURRENT, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def list_tables(lake: str) -> list[TableId]:
    """Every table that the sink has written or tried to write."""
    names = ("tenant", "source", "database", "table")
    cuts = open_table(Records(lake).cuts_folder)
    if cuts is None:
        return []
    chosen = ", ".join(quoted(name) for name in names)
    rows = scan(cuts, f"SELECT DISTINCT {chosen} FROM t").read_all().to_pylist()  # noqa: S608  (constants)
    return sorted(TableId(*(row[name] for name in names)) for row in rows)


def stopped_tables(lake: str) -> list[StoppedTable]:
    """The tables that wait, each with the entry and cut that it stopped at and why."""
    return sorted(Records(lake).stopped_tables().values(), key=lambda stop: stop.table)


def current_state(lake: str, table: TableId, version: int | None = None) -> pa.Table:
    """The current state, or that of a Delta version. Raises `TableNotInLake`."""
    return _read(lake, table, CURRENT, version)


def changelog(lake: str, table: TableId, version: int | None = None) -> pa.Table:
    """All changes; order by `_gsn`. Raises `TableNotInLake`."""
    return _read(lake, table, CHANGELOG, version)


def current_state_frame(session: "SparkSession", lake: str, table: TableId) -> "DataFrame":
    """The current state as a Spark DataFrame."""
    frame = session.read.format("delta").load(f"{table.folder(lake)}/{CURRENT}")
    return frame.drop(*_own(frame.columns))


def changelog_frame(session: "SparkSession", lake: str, table: TableId) -> "DataFrame":
    """All changes as a Spark DataFrame."""
    return session.read.format("delta").load(f"{table.folder(lake)}/{CHANGELOG}")


def _read(lake: str, table: TableId, kind: str, version: int | None) -> pa.Table:
    found = open_table(f"{table.folder(lake)}/{kind}")
    if found is None:
        raise TableNotInLake(
            f"reading a {kind}",
            f"{table} has none in {lake}",
            remedy="See which tables there are with spark_sink.reading.list_tables",
        )
    if version is not None:
        found.load_as_version(version)
    names = schema_of(found).names
    own = set(_own(names))
    chosen = ", ".join(quoted(name) for name in names if name not in own)
    return scan(found, f"SELECT {chosen} FROM t").read_all()  # noqa: S608  (quoted names of a table that we opened)


def _own(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(OWN_PREFIX)]
