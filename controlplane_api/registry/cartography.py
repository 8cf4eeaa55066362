"""A source's cartography as its tables' rows: only what changed since the last one is written."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from menura.bounds import clean_int64, clean_text
from sqlalchemy import Connection, bindparam, insert, select, update

from controlplane_api.models import SourceTable
from gateway.registry import TableSeen


def store_cartography(connection: Connection, source_id: int, tables: Sequence[TableSeen]) -> None:
    """Replace the whole of it; a table that is gone is marked and keeps its sync."""
    stored = {
        (row.database, row.name): row
        for row in connection.execute(
            select(SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.digest, SourceTable.gone).where(
                SourceTable.source_id == source_id
            )
        )
    }
    new, changed = [], []
    seen = {(table.database, table.table): table for table in tables}
    for (database, name), table in seen.items():
        card = _card(table)
        row = stored.get((database, name))
        if row is None:
            new.append({"source_id": source_id, "database": database, "name": name, **card})
        elif row.gone or row.digest != card["digest"]:
            changed.append({"of_table": row.id, **{f"to_{column}": value for column, value in card.items()}})
    gone = [{"of_table": row.id} for named, row in stored.items() if named not in seen and not row.gone]
    this = SourceTable.id == bindparam("of_table")
    if new:
        connection.execute(insert(SourceTable), new)
    if changed:
        columns = [name.removeprefix("to_") for name in changed[0] if name != "of_table"]
        connection.execute(
            update(SourceTable).where(this).values({name: bindparam(f"to_{name}") for name in columns}), changed
        )
    if gone:
        connection.execute(update(SourceTable).where(this).values(gone=True), gone)


def _card(table: TableSeen) -> dict[str, Any]:
    card = {
        "engine": clean_text(table.engine),
        "table_collation": clean_text(table.collation),
        "estimated_rows": None if table.estimated_rows is None else clean_int64(table.estimated_rows),
        "size_bytes": None if table.size_bytes is None else clean_int64(table.size_bytes),
        "columns": [asdict(column) for column in table.columns],
        "keys": [{**asdict(key), "columns": list(key.columns)} for key in table.keys],
        "denied": table.denied,
        "gone": False,
    }
    return {**card, "digest": hashlib.sha256(json.dumps(card).encode()).hexdigest()[:32]}
