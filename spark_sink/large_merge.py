"""A table's batch that is too large for one worker: Spark's own Delta MERGE, driven from the driver.

Comes in: the outcome of a task that left a table alone because one of its cuts exceeds `TaskSize`. The driver
streams its files by row groups, once into the changelog, and once, with the columns of the current state, into
Parquet files under LAKE/_menura/staging; Spark then computes the net effect and merges it, spilling to disk where
it must. The rules are those of `net_effect`, said in SQL, and the same Delta `txn` make it exactly once.

Deletion vectors stay off. Measured, delta-rs's MERGE and its SQL read them right, but its pyarrow dataset refuses
the whole table, and so would shut out who reads the lake without Spark.
A kill leaves staged files behind; they have no meaning, and the next large batch of the table removes them.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from menura.change_batch import GSN
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_sink.delta_table import open_table, schema_of
from spark_sink.landed_file import open_landed
from spark_sink.landing_log import LandingLog
from spark_sink.net_effect import COPY, DELETED, ROW_HASH
from spark_sink.records import FOLDER
from spark_sink.storage import Folder
from spark_sink.table_task import apply_table
from spark_sink.table_writer import (
    Segment,
    Versions,
    append_changelog,
    match_columns,
    prepare_current,
    read_progress,
    segment_tables,
    segments,
    version_at,
)
from spark_sink.work import CHANGELOG, CURRENT, Outcome, TableFile, TableId

TRANSACTION_APPLICATION = "spark.databricks.delta.write.txnAppId"
TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"


class LargeMerger:
    def __init__(self, session: SparkSession, log: LandingLog, lake: str) -> None:
        self.session = session
        self.log = log
        self.lake = lake

    def apply(self, outcome: Outcome) -> Outcome:
        """The table's outcome once Spark has merged it."""
        return apply_table(outcome.table, outcome.files, lambda: self._apply(outcome.table, outcome.files))

    def _apply(self, table: TableId, files: Sequence[TableFile]) -> Versions:
        changelog, current = (f"{table.folder(self.lake)}/{kind}" for kind in (CHANGELOG, CURRENT))
        logged, merged = (read_progress(open_table(folder), table) for folder in (changelog, current))
        parts = [open_landed(self.log, table, file) for file in files if file.cut > min(logged.cut, merged.cut)]
        to_log = [part for part in parts if part.file.cut > logged.cut]
        if to_log:
            append_changelog(open_table(changelog), changelog, table, to_log)
        for segment in segments(table, [part for part in parts if part.file.cut > merged.cut]):
            self._merge_segment(table, current, segment, merged.gsn)
        end = files[-1].cut
        return Versions(
            version_at(open_table(changelog), max(logged.cut, end), end),
            version_at(open_table(current), max(merged.cut, end), end),
            bool(parts),
        )

    def _merge_segment(self, table: TableId, folder: str, segment: Segment, merged_gsn: int) -> None:
        held = schema_of(prepare_current(open_table(folder), folder, table, segment))
        staging = Folder(table.folder(f"{self.lake}/{FOLDER}/staging"))
        staging.remove()
        schema = pa.schema([*held, pa.field(DELETED, pa.bool_())])
        output = Folder(staging.child("segment.parquet")).open_output()
        with output, pq.ParquetWriter(output, schema, compression="zstd") as writer:
            for rows in segment_tables(table, segment, held, merged_gsn):
                writer.write_table(rows.cast(schema))
        staged = self.session.read.parquet(staging.url)
        match = match_columns(held, segment.layout.key)
        effect = keyed_effect(staged, match) if segment.layout.key else keyless_effect(staged, self._delta(folder))
        self._merge(folder, effect.select(*map(column, [*held.names, DELETED])), match, segment.transaction)
        staging.remove()

    def _delta(self, folder: str) -> DataFrame:
        return self.session.read.format("delta").load(folder)

    def _merge(self, folder: str, effect: DataFrame, match: Sequence[str], transaction: tuple[str, int]) -> None:
        effect.createOrReplaceTempView("menura_effect")
        names = [name for name in effect.columns if name != DELETED]
        on = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in match)
        updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
        columns, values = (", ".join(f"{of}{quoted(name)}" for name in names) for of in ("", "s."))
        application, version = transaction
        self.session.conf.set(TRANSACTION_APPLICATION, application)
        self.session.conf.set(TRANSACTION_VERSION, str(version))
        try:
            self.session.sql(
                f"MERGE INTO delta.{quoted(folder)} t USING menura_effect s ON {on} "  # noqa: S608  (quoted names)
                f"WHEN MATCHED AND s.{DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({columns}) VALUES ({values})"
            )
        finally:
            self.session.conf.unset(TRANSACTION_APPLICATION)
            self.session.conf.unset(TRANSACTION_VERSION)
            self.session.catalog.dropTempView("menura_effect")


def keyed_effect(staged: DataFrame, key: Sequence[str]) -> DataFrame:
    """`net_effect.keyed_effect` in Spark."""
    last_first = Window.partitionBy(*map(column, key)).orderBy(column(GSN).desc(), column(DELETED).asc())
    return staged.withColumn("_menura_place", F.row_number().over(last_first)).where("_menura_place = 1")


def keyless_effect(staged: DataFrame, current: DataFrame) -> DataFrame:
    """`net_effect.keyless_effect` in Spark.

    A count that never falls below 0 ends at S + max(held, -m): S the sum of all steps, m the least of the
    partial sums and 0.
    """
    of_row = Window.partitionBy(ROW_HASH)
    in_order = of_row.orderBy(column(GSN).asc(), column(DELETED).desc()).rowsBetween(Window.unboundedPreceding, 0)
    last_first = of_row.orderBy(column(GSN).desc(), column(DELETED).asc())
    step = F.when(column(DELETED), F.lit(-1)).otherwise(F.lit(1))
    sums = (
        staged.withColumn("_menura_sum", F.sum(step).over(in_order))
        .withColumn("_menura_least", F.least(F.min("_menura_sum").over(of_row), F.lit(0)))
        .withColumn("_menura_total", F.sum(step).over(of_row))
        .withColumn("_menura_place", F.row_number().over(last_first))
        .where("_menura_place = 1")
    )
    held = current.groupBy(ROW_HASH).agg(F.count(F.lit(1)).alias("_menura_held"))
    counted = sums.join(held, ROW_HASH, "left").fillna(0, ["_menura_held"])
    after = F.col("_menura_total") + F.greatest(F.col("_menura_held"), -F.col("_menura_least"))
    counted = counted.withColumn("_menura_after", after).where("_menura_after <> _menura_held")
    copies = F.sequence(F.least("_menura_held", "_menura_after"), F.greatest("_menura_held", "_menura_after") - 1)
    numbered = counted.withColumn(COPY, F.explode(copies))
    return numbered.withColumn(DELETED, F.col(COPY) >= F.col("_menura_after"))


def column(name: str) -> Column:
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
