"""A table's batch that is too large for one worker: Spark's own Delta MERGE, driven from the driver.

Comes in: the outcome of a task that left a table alone because one of its cuts exceeds `TaskSize`. The driver
streams its files by row groups, once into the changelog, and once, with the columns of the current state, into
Parquet files under LAKE/_menura/staging; Spark then computes the net effect and merges it, spilling to disk where
it must. The rules are those of `net_effect`, said in SQL, and the same Delta `txn` make it exactly once.

Rows that lack values owe them to the row's earlier life, which may have had another key: SQL has no good words for
that. They are merged by the worker's way, `CHUNK_ROWS` at a time, each with the `txn` of its last number; and so are
rows of a table without a key of which some rows are known in part.

In an object store all are merged so: Spark's commits there and those of delta-rs exclude nobody, see DECISIONS 192.

Deletion vectors stay off. Measured, delta-rs's MERGE and its SQL read them right, but its pyarrow dataset refuses
the whole table, and so would shut out who reads the lake without Spark.
A kill leaves staged files behind; they have no meaning, and the next large batch of the table removes them.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from menura.change_batch import CHANGE_TYPE, GSN, ChangeType
from menura.stores.address import is_local
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_sink.ingest.table_task import apply_table
from spark_sink.ingest.table_writer import apply_once
from spark_sink.lake.current_rows import match_columns, unknown_texts
from spark_sink.lake.delta_table import Transactions, is_empty, progress_transactions, schema_of
from spark_sink.lake.merge import merge_tables
from spark_sink.lake.net_effect import COPY, DELETED, IS_DELETED, ROW_HASH
from spark_sink.lake.record_rows import FOLDER
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.schema_policy import SchemaPolicy
from spark_sink.lake.steps import Segment, segment_tables
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.table_options import NO_OPTIONS, TableOptions
from spark_sink.landed.landed_file import open_landed
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CURRENT, Outcome, TableId

TRANSACTION_APPLICATION = "spark.databricks.delta.write.txnAppId"
TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
#: rows that lack values, merged at once; see the measure of `TaskSize`
CHUNK_ROWS = 500_000


class LargeMerger:
    def __init__(self, session: SparkSession, log: LandingLog, lake: str) -> None:
        self.session = session
        self.log = log
        self.lake = lake

    def apply(
        self,
        outcome: Outcome,
        recorded: Recorded = NOTHING,
        policy: SchemaPolicy = SchemaPolicy.EVOLVE,
        options: TableOptions = NO_OPTIONS,
    ) -> Outcome:
        """The table's outcome once Spark has merged it."""
        table, work = outcome.table, outcome.work
        merge_rows = partial(self._merge_rows, table)
        how = partial(apply_once, policy=policy, options=options)
        once = partial(how, self.log, self.lake, table, work, recorded, open_landed, merge_rows)
        return apply_table(table, work, once)

    def _merge_rows(
        self, table: TableId, current: DeltaTable, segment: Segment, merged_gsn: int, transactions: Transactions
    ) -> None:
        """`MergeRows` on Spark."""
        held = schema_of(current)
        tables = segment_tables(table, segment, held, merged_gsn)
        is_kept = segment.may_be_partial or segment.keeps_numbers or IS_DELETED in held.names
        if is_kept or not is_local(self.lake) or (not segment.layout.key and unknown_texts(current)):
            for rows, carried in chunks(tables, segment, table.application, merged_gsn, transactions):
                merge_tables(table, current, segment.layout, rows, carried)
            return
        staging = Path(table.folder(f"{self.lake}/{FOLDER}/staging"))
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        schema = pa.schema([*held, pa.field(DELETED, pa.bool_())])
        with pq.ParquetWriter(staging / "segment.parquet", schema, compression="zstd") as writer:
            for rows in tables:
                writer.write_table(rows.cast(schema))
        staged = self.session.read.parquet(str(staging))
        folder = f"{table_folder(self.lake, table)}/{CURRENT}"
        match = match_columns(held, segment.layout.key)
        effect = keyed_effect(staged, match) if segment.layout.key else keyless_effect(staged, self._delta(folder))
        effect = effect.select(*map(column, [*held.names, DELETED]))
        # Spark's commit carries one transaction: the cut's, where it is complete.
        with self._committing(transactions[-1]):
            if is_empty(current):  # as before the rows of a whole table: a MERGE would look for each of them
                put = effect.where(f"NOT {DELETED}").drop(DELETED)
                put.write.format("delta").mode("append").save(folder)
            else:
                self._merge(folder, effect, match)
        shutil.rmtree(staging)
        current.update_incremental()

    def _delta(self, folder: str) -> DataFrame:
        return self.session.read.format("delta").load(folder)

    @contextmanager
    def _committing(self, transaction: tuple[str, int]) -> Iterator[None]:
        """Delta's commits carry the transaction."""
        application, version = transaction
        self.session.conf.set(TRANSACTION_APPLICATION, application)
        self.session.conf.set(TRANSACTION_VERSION, str(version))
        try:
            yield
        finally:
            self.session.conf.unset(TRANSACTION_APPLICATION)
            self.session.conf.unset(TRANSACTION_VERSION)

    def _merge(self, folder: str, effect: DataFrame, match: Sequence[str]) -> None:
        effect.createOrReplaceTempView("menura_effect")
        names = [name for name in effect.columns if name != DELETED]
        on = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in match)
        updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
        columns, values = (", ".join(f"{of}{quoted(name)}" for name in names) for of in ("", "s."))
        try:
            self.session.sql(
                f"MERGE INTO delta.{quoted(folder)} t USING menura_effect s ON {on} "  # noqa: S608  (quoted names)
                f"WHEN MATCHED AND s.{DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({columns}) VALUES ({values})"
            )
        finally:
            self.session.catalog.dropTempView("menura_effect")


def chunks(
    tables: Iterable[pa.Table], segment: Segment, application: str, merged_gsn: int, transactions: Transactions
) -> Iterator[tuple[list[pa.Table], Transactions]]:
    """Rows to merge at once, and what their commit carries; never between a preimage and its postimage."""
    files = [part.file for part in segment.parts]
    is_in_order = all(before.last_gsn < after.first_gsn for before, after in pairwise(files))
    # A dump's rows have one number, which says nothing of how many of them are done.
    is_in_order = is_in_order and all(file.chunk is None for file in files)
    gathered: list[pa.Table] = []
    for rows in tables:
        gathered.append(rows)
        if is_in_order and sum(map(len, gathered)) >= CHUNK_ROWS:
            whole = pa.concat_tables(gathered, promote_options="default")
            kinds = whole[CHANGE_TYPE] if CHANGE_TYPE in whole.column_names else None  # in none of these does it matter
            open_rows = int(kinds is not None and kinds[-1].as_py() == ChangeType.update_preimage.name)
            done = whole.slice(0, len(whole) - open_rows)
            gathered = [whole.slice(len(done))]
            if len(done):
                gsn = max(merged_gsn, done[GSN][-1].as_py())
                yield [done], progress_transactions(application, None, gsn)
    yield gathered, transactions


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
    numbers = F.count(F.lit(1)).alias("_menura_held"), F.max(COPY).alias("_menura_greatest")
    counted = sums.join(current.groupBy(ROW_HASH).agg(*numbers), ROW_HASH, "left")
    counted = counted.fillna({"_menura_held": 0, "_menura_greatest": -1})
    after = F.col("_menura_total") + F.greatest(F.col("_menura_held"), -F.col("_menura_least"))
    counted = counted.withColumn("_menura_after", after)
    first = F.greatest("_menura_greatest", F.lit(-1)) + 1
    added = counted.where("_menura_after > _menura_held")
    new = F.sequence(first, first + F.col("_menura_after") - F.col("_menura_held") - 1)
    added = added.withColumn(COPY, F.explode(new)).withColumn(DELETED, F.lit(False))
    gone = counted.where("_menura_after < _menura_held").drop(COPY).join(current.select(ROW_HASH, COPY), ROW_HASH)
    highest_first = Window.partitionBy(ROW_HASH).orderBy(column(COPY).desc())
    gone = gone.withColumn("_menura_rank", F.row_number().over(highest_first))
    gone = gone.where("_menura_rank <= _menura_held - _menura_after").withColumn(DELETED, F.lit(True))
    names = list(map(column, staged.columns))
    return added.select(*names).unionByName(gone.select(*names))


def column(name: str) -> Column:
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
