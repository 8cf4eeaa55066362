"""For users and tests: what is in the lake, with Spark or without.

Plain functions over a lake's address. Without Spark they give Arrow, through delta-rs; with a session they give a
DataFrame, or a view for SQL. A current state comes without the sink's own `_menura_` columns, so it is the source's
table with `_unrepresentable` and `_gsn`. Of a table with options (`spark_sink.lake.table_options`) it has
`_menura_committed_at`; rows that the source has deleted are there, with `_menura_is_deleted`, if they are asked for.

A large table's newest changes may stand in its changelog alone (`spark_sink.lake.tail`). Everything here adds them, so
that a reader sees the newest cut; who reads the Delta table `current` by other means sees it as it was merged last.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import GSN

from spark_sink.errors import ChangelogShortened, TableNotInLake
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.delta_table import open_table, quoted, scan, schema_of
from spark_sink.lake.net_effect import COMMITTED_AT, DELETED, IS_DELETED
from spark_sink.lake.recorded import boundary_of
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.tail import Rows, rows_of
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.work import CHANGELOG, CURRENT, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def list_tables(lake: str) -> list[TableId]:
    """Every table that the sink has written or tried to write."""
    return Records(lake).table_folders.tables()


def stopped_tables(lake: str) -> list[StoppedTable]:
    """The tables that wait, each with the entry and cut that it stopped at and why."""
    return sorted(Records(lake).stopped_tables().values(), key=lambda stop: stop.table)


def open_rows(lake: str, table: TableId, cut: int | None = None) -> Rows:
    """The table's rows at this moment, to be read in batches; or as they were at a cut of the source.

    `Rows.progress` says up to which cut and number they are. Raises `TableNotInLake`.
    """
    if cut is not None:
        log_version, version = _versions_at(lake, table, cut)
        if log_version is None or version is None:
            raise _not_at(table, cut)
        return rows_of_versions(lake, table, log_version, version)
    # The changelog first: what is merged meanwhile is in the current state, which then needs no tail.
    log = open_table(f"{table_folder(lake, table)}/{CHANGELOG}")
    return rows_of(table, opened(lake, table, CURRENT), log)


def rows_of_versions(lake: str, table: TableId, changelog_version: int, current_version: int) -> Rows:
    """The rows of two versions that belong together. Raises `TableNotInLake`; DeltaError where a version is gone."""
    log, current = opened_versions(lake, table, changelog_version, current_version)
    return rows_of(table, current, log)


def opened_versions(
    lake: str, table: TableId, changelog_version: int, current_version: int
) -> tuple[DeltaTable, DeltaTable]:
    """Changelog and current state. Raises `TableNotInLake`; DeltaError where a version is gone."""
    log, current = (opened(lake, table, kind) for kind in (CHANGELOG, CURRENT))
    log.load_as_version(changelog_version)
    current.load_as_version(current_version)
    return log, current


def current_state(lake: str, table: TableId, cut: int | None = None, *, with_deleted: bool = False) -> pa.Table:
    """The current state, or that at a cut; `with_deleted` rows, where the table keeps them. Raises `TableNotInLake`."""
    return arrow_of(open_rows(lake, table, cut), with_deleted=with_deleted)


def own_columns(rows: Rows, *, with_deleted: bool = False) -> list[str]:
    """Those of a reader: without the sink's own, but for those of the table's options."""
    own = set(_own(rows.schema.names, with_deleted=with_deleted))
    return [name for name in rows.schema.names if name not in own]


def arrow_of(rows: Rows, *, with_deleted: bool = False) -> pa.Table:
    names = own_columns(rows, with_deleted=with_deleted)
    found = rows.tables(names, with_deleted=with_deleted)
    return pa.concat_tables([pa.schema([rows.schema.field(name) for name in names]).empty_table(), *found])


def row_count(lake: str, table: TableId, cut: int | None = None) -> int:
    """How many rows the current state has. Raises `TableNotInLake`."""
    return open_rows(lake, table, cut).count()


def changelog(lake: str, table: TableId, version: int | None = None, above_gsn: int | None = None) -> pa.Table:
    """All changes that are kept, or all with a higher number; order by `_gsn`.

    Raises `TableNotInLake`; `ChangelogShortened` where some of those with a higher number are not kept any more.
    """
    found = opened(lake, table, CHANGELOG)
    if version is not None:
        found.load_as_version(version)
    condition = "TRUE"
    if above_gsn is not None:
        begins_gsn = read_kept(found).begins_gsn
        if above_gsn + 1 < begins_gsn:
            raise ChangelogShortened(
                f"reading the changelog of {table} above {above_gsn}",
                f"it has changes from {begins_gsn} on",
                data="The current state has what all of them did",
                remedy="Begin with the current state, and go on behind its highest _gsn; the sink keeps more with"
                " --keep-changelog",
            )
        condition = f"{quoted(GSN)} > {int(above_gsn)}"
    names = schema_of(found).names
    own = set(_own(names, with_deleted=False))
    chosen = ", ".join(quoted(name) for name in names if name not in own)
    return scan(found, f"SELECT {chosen} FROM t WHERE {condition}").read_all()  # noqa: S608  (quoted names)


def changelog_begins(lake: str, table: TableId) -> int:
    """The number from which on the changelog has all changes; 0: it has all that there were.

    Raises `TableNotInLake`.
    """
    return read_kept(opened(lake, table, CHANGELOG)).begins_gsn


def current_state_frame(
    session: "SparkSession", lake: str, table: TableId, cut: int | None = None, *, with_deleted: bool = False
) -> "DataFrame":
    """The current state as a Spark DataFrame: as it is at this moment, however long the frame lives."""
    return frame_of(session, lake, table, open_rows(lake, table, cut), with_deleted=with_deleted)


def frame_of(
    session: "SparkSession", lake: str, table: TableId, rows: Rows, *, with_deleted: bool = False
) -> "DataFrame":
    """These rows of the table as a Spark DataFrame."""
    reader = session.read.format("delta").option("versionAsOf", rows.current.version())
    frame = reader.load(f"{table_folder(lake, table)}/{CURRENT}")
    if rows.effect is not None and rows.effect.num_rows:
        frame = _with_effect(session, frame, rows)
    if rows.keeps_deleted and not with_deleted:
        frame = frame.where(f"{_ticked(IS_DELETED)} IS NOT TRUE")
    return frame.drop(*_own(frame.columns, with_deleted=with_deleted))


def create_view(
    session: "SparkSession", lake: str, table: TableId, name: str, cut: int | None = None, *, with_deleted: bool = False
) -> None:
    """A view for SQL of the session, with the current state as it is at this moment; again for a later one."""
    current_state_frame(session, lake, table, cut, with_deleted=with_deleted).createOrReplaceTempView(name)


def _with_effect(session: "SparkSession", frame: "DataFrame", rows: Rows) -> "DataFrame":
    """Without the rows that the tail changes or takes away, and with those that it puts."""
    from pyspark.sql import functions as F  # noqa: PLC0415  (only who has Spark)
    from pyspark.sql.types import BooleanType, StructField, StructType  # noqa: PLC0415

    assert rows.effect is not None
    schema = frame.schema
    effect = session.createDataFrame(
        [tuple(row.values()) for row in rows.effect.select([*schema.names, DELETED]).to_pylist()],
        StructType([*schema.fields, StructField(DELETED, BooleanType())]),
    )
    match = [f"t.{_ticked(name)} <=> s.{_ticked(name)}" for name in rows.match]
    left = frame.alias("t").join(effect.alias("s"), F.expr(" AND ".join(match)), "left_anti")
    return left.unionByName(effect.where(f"NOT {DELETED}").drop(DELETED))


def changelog_frame(session: "SparkSession", lake: str, table: TableId) -> "DataFrame":
    """All changes as a Spark DataFrame."""
    return session.read.format("delta").load(f"{table_folder(lake, table)}/{CHANGELOG}")


def opened(lake: str, table: TableId, kind: str) -> DeltaTable:
    """One of the table's two Delta tables. Raises `TableNotInLake`."""
    found = open_table(f"{table_folder(lake, table)}/{kind}")
    if found is None:
        raise TableNotInLake(
            f"reading a {kind}",
            f"{table} has none in {lake}",
            remedy="See which tables there are with spark_sink.reading.list_tables",
        )
    return found


def _versions_at(lake: str, table: TableId, cut: int) -> tuple[int | None, int | None]:
    """The changelog's and the current state's at the last boundary up to this cut."""
    cuts = open_table(Records(lake).cuts_folder)
    if cuts is None:
        raise _not_at(table, cut)
    found = boundary_of(cuts, table, cut)
    if found is None:
        raise _not_at(table, cut)
    return found


def _not_at(table: TableId, cut: int) -> TableNotInLake:
    return TableNotInLake(
        "reading a table at a cut",
        f"{table} is not readable at cut {cut}: it had no row then, had stopped, or was brought further at once",
        remedy="See LAKE/_menura/cuts for the cuts at which it has versions",
    )


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _own(names: Iterable[str], *, with_deleted: bool) -> list[str]:
    shown = {COMMITTED_AT, IS_DELETED} if with_deleted else {COMMITTED_AT}
    return [name for name in names if name.startswith(OWN_PREFIX) and name not in shown]
