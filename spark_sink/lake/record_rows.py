"""How the sink writes rows of its own, small Delta tables under LAKE/_menura: each row has its commit's number."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from menura.stores.options import delta_options

from spark_sink.errors import LakeRecordsUnwritable
from spark_sink.lake.delta_table import add_columns, make_folder, open_table, schema_of
from spark_sink.work import TableId

FOLDER = "_menura"
#: rows of a later commit have a higher one, whatever the clock says
NUMBER = "number"
COMPACT_EVERY_VERSIONS = 64


def table_facts(table: TableId) -> dict[str, Any]:
    return {"tenant": table.tenant, "source": table.source, "database": table.database, "table": table.table}


def number_of(records: DeltaTable) -> str:
    """SQL for a row's number; rows of an earlier version have none."""
    return f"coalesce({NUMBER}, -1)" if NUMBER in schema_of(records).names else "-1"


def append_rows(
    folder: str,
    rows: list[dict[str, Any]],
    schema: pa.Schema,
    properties: CommitProperties | None = None,
) -> int | None:
    """Append rows; a table of an earlier version gets the columns that it lacks, and rows those that it has beyond.

    Gives the version that has them, if any.
    """
    if not rows:
        return None
    with recording(folder):
        make_folder(folder)
        options = delta_options(folder)
        held = open_table(folder)
        if held is not None:
            add_columns(held, schema)
            schema = schema_of(held)
        number = held.version() + 1 if held is not None else 0
        rows_table = pa.Table.from_pylist([{**row, NUMBER: number} for row in rows], schema=schema)
        write_deltalake(
            held or folder, rows_table, mode="append", commit_properties=properties, storage_options=options
        )
        table = held or DeltaTable(folder, storage_options=options)
        if table.version() and table.version() % COMPACT_EVERY_VERSIONS == 0:
            table.optimize.compact()
        return table.version()


@contextmanager
def recording(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, DeltaError) as failure:
        raise LakeRecordsUnwritable(
            f"recording the batch in {folder}",
            type(failure).__name__,
            data="The batch is not checkpointed and will be done again; nothing is written twice",
            remedy="Check the lake's storage, then start the sink again",
        ) from failure
