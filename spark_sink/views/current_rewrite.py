"""A view's current state from its rows and very many changes that wait, without a MERGE, which has them all in memory.

Comes in: the two tables, and the tail (`spark_sink.lake.tail`). Goes out: one commit, which puts all rows anew, the
last change of each key in place of the row that it had. The engine reads both from scans and keeps what waits in its
scratch folder, so memory is bounded by the engine's. Durable is the commit alone; a kill before it leaves the tail.

Such a tail is a computation of the whole view whose end has not come to the current state, e.g. since the task that
made it was killed between its two commits. Nearly all files of a MERGE would be written anew by it too.
"""

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import CHANGE_TYPE, GSN, ChangeType
from menura.views.terms import quoted

from spark_sink.lake import delta_table
from spark_sink.lake.delta_table import WRITER, commit_properties, progress_transactions, scan, schema_of
from spark_sink.lake.tail import Tail, size_above
from spark_sink.views.engine import Engine, engine
from spark_sink.views.queries import same_key
from spark_sink.work import TableId

#: of a tail, that a MERGE takes at most
MOST_MERGED_ROWS = 1_000_000


def is_large(changelog: DeltaTable, tail: Tail) -> bool:
    """Whether it has more rows than a MERGE takes, by what files say."""
    rows, _ = size_above(changelog, tail.merged.gsn)
    return rows > MOST_MERGED_ROWS


def rewrite_with(table: TableId, current: DeltaTable, changelog: DeltaTable, tail: Tail, key: tuple[str, ...]) -> None:
    """Raises `ViewNotComputed`; OSError, DeltaError where the storage fails."""
    schema, reached = schema_of(current), tail.progress
    with engine() as sql:
        _put(sql, current, changelog, tail, schema.names)
        rows = (batch for each in sql.reader(_query(schema.names, key)) for batch in _batches(each, schema))
        write_deltalake(
            current,
            pa.RecordBatchReader.from_batches(schema, rows),
            mode="overwrite",
            writer_properties=WRITER,
            commit_properties=commit_properties(*progress_transactions(table.application, reached.cut, reached.gsn)),
        )


def _put(sql: Engine, current: DeltaTable, changelog: DeltaTable, tail: Tail, names: list[str]) -> None:
    """Rows under `_held`, what waits under `_tail`: of an update its new row."""
    chosen = ", ".join(map(delta_table.quoted, names))
    old = ChangeType.update_preimage.name
    above = f"{delta_table.quoted(GSN)} > {tail.merged.gsn} AND {delta_table.quoted(GSN)} <= {tail.gsn}"
    kind = delta_table.quoted(CHANGE_TYPE)
    sql.put("_rows", scan(changelog, f"SELECT {kind}, {chosen} FROM t WHERE {above} AND {kind} <> '{old}'"))  # noqa: S608
    sql.keep("_tail", "SELECT * FROM _rows")
    sql.put("_held", scan(current, f"SELECT {chosen} FROM t"))  # noqa: S608  (quoted names)


def _query(names: list[str], key: tuple[str, ...]) -> str:
    """Rows whose key no change has, and of each other key the one that its last change leaves."""
    columns, of_key = (", ".join(f"{{0}}.{quoted(name)}" for name in each) for each in (names, key))
    last = f"SELECT max({quoted(GSN)}) AS last FROM _tail k GROUP BY {of_key.format('k')}"  # noqa: S608  (quoted names)
    return (
        f"SELECT {columns.format('h')} FROM _held h ANTI JOIN _tail t ON {same_key('h', 't', key)} UNION ALL"  # noqa: S608
        f" SELECT {columns.format('t')} FROM _tail t SEMI JOIN ({last}) l ON t.{quoted(GSN)} = l.last"
        f" WHERE t.{quoted(CHANGE_TYPE)} <> '{ChangeType.delete.name}'"
    )


def _batches(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_batches([batch]).cast(schema).to_batches()
    return found
