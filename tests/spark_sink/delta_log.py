"""A Delta table read without delta-rs: its log replayed by the protocol's rules, its files by Arrow."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass
class Replayed:
    version: int = -1
    #: what each live file's `add` says
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)


def replay(folder: Path) -> Replayed:
    """From the newest checkpoint on; every version after it has to be there once, and only live files are removed."""
    log, found = folder / "_delta_log", Replayed()
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    for path in checkpoints[-1:]:
        found.version = int(path.name[:20])
        for action in pq.read_table(path).to_pylist():
            _apply(found, action)
    versions = [int(path.stem) for path in sorted(log.glob("[0-9]*.json"))]
    for version in (each for each in versions if each > found.version):
        assert version == found.version + 1
        for line in (log / f"{version:020d}.json").read_text().splitlines():
            _apply(found, json.loads(line))
        found.version = version
    return found


def _apply(found: Replayed, action: dict[str, Any]) -> None:
    add, remove, txn = (action.get(kind) or {} for kind in ("add", "remove", "txn"))
    if add.get("path"):
        assert add["path"] not in found.files
        found.files[add["path"]] = add
    if remove.get("path"):
        found.files.pop(remove["path"], None)
    if txn.get("appId"):
        found.transactions[txn["appId"]] = txn["version"]


def read_by_hand(folder: Path) -> pa.Table:
    """All rows; what each file's entry says of it is checked."""
    tables = []
    for name, add in replay(folder).files.items():
        path = folder / unquote(name)
        assert path.stat().st_size == add["size"]
        rows = pq.read_table(path, partitioning=None)
        check_statistics(rows, json.loads(add["stats"]))
        tables.append(rows)
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def check_statistics(rows: pa.Table, said: dict[str, Any]) -> None:
    """Bounds may be wider than the rows, never narrower."""
    assert said["numRecords"] == rows.num_rows
    for name, count in said.get("nullCount", {}).items():
        assert rows[name].null_count == count
    for name in said.get("minValues", {}):
        low, high = said["minValues"][name], said["maxValues"][name]
        column, type_ = rows[name], rows.schema.field(name).type
        if pa.types.is_timestamp(type_):
            words = pa.array([word.replace(" ", "T").removesuffix("Z") for word in (low, high)])
            low, high = words.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
            column = column.cast(pa.int64())
        elif pa.types.is_date(type_):
            column = column.cast(pa.string())
        found = pc.min_max(column).as_py()
        assert low <= found["min"] and found["max"] <= high, name
