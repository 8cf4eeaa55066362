"""What verifications have found: rows of the Delta table LAKE/_menura/validation, which the driver writes.

One row for each chunk whose cut the lake has (`verdict` due: it is still to be compared, and `due` says with what), one
for what was found of it, and one for the table (`chunk` null) when its verification begins (due), ends, or is given up.
The last row of a chunk, or of a table, is the one with the highest `number`. Once a table has its verdict, the rows of
its chunks go, but those that say what is not equal.

``verdict``  due, or `digests.Verdict`; never "equal" where something was not compared
``leaves_equal``, ``leaves_unknown``  how many, of what was compared; those that differ are in ``leaves``
``leaves``   JSON array of {"lower", "upper", "source_rows", "lake_rows", "bits", "bucket"}: leaves in which rows differ
``rows``     JSON array of {"key", "hash", "source_rows", "lake_rows", "columns"}: rows that differ, the first thousand
``focus``    of a table with leaves that differ, JSON of `menura.landed_digest.LandedFocus`: what is to be read again
``unproven``  of a table that is not equal, the same: ranges outside of which all was equal; null: they are not known
``since_gsn``  of a table: above this number all is told that is not logged; once it is equal it stands for a dump
               that began there. 0 or null: that is not known
"""

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from menura.instants import now_us
from menura.landed_digest import LandedFocus

from spark_sink.lake.delta_table import open_table, scan
from spark_sink.lake.digests import Finding, Verdict
from spark_sink.lake.record_rows import FOLDER, NUMBER, append_rows, table_facts
from spark_sink.work import DueChunk, TableId

#: what is found later
DUE = "due"
#: of those that differ
MOST_ROWS = 1_000
SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("verification", pa.string()),
        ("chunk", pa.int64()),
        ("range", pa.int64()),
        ("lower", pa.string()),
        ("upper", pa.string()),
        #: of the cut at whose end the lake was looked at; of a table its last one
        ("cut", pa.int64()),
        ("gsn", pa.int64()),
        #: of the source
        ("position", pa.string()),
        ("read_at_us", pa.int64()),
        ("source_rows", pa.int64()),
        ("lake_rows", pa.int64()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("leaves", pa.string()),
        ("leaves_equal", pa.int64()),
        ("leaves_unknown", pa.int64()),
        ("due", pa.string()),
        ("rows", pa.string()),
        ("focus", pa.string()),
        ("unproven", pa.string()),
        ("since_gsn", pa.int64()),
        ("at_us", pa.int64()),
        (NUMBER, pa.int64()),
    ]
)


class ValidationRecords:
    def __init__(self, lake: str) -> None:
        self.folder = f"{lake}/{FOLDER}/validation"
        self._writing = threading.Lock()

    def record(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Append rows, which it gives with their time. Raises `LakeRecordsUnwritable`."""
        timed = [{**row, "at_us": now_us()} for row in rows]
        with self._writing:
            append_rows(self.folder, timed, SCHEMA)
        return timed

    def rows(self) -> list[dict[str, Any]]:
        """All there are, in the order in which they were written."""
        held = open_table(self.folder)
        query = f"SELECT * FROM t ORDER BY {NUMBER}, chunk NULLS FIRST"  # noqa: S608  (constants)
        return [] if held is None else scan(held, query).read_all().to_pylist()

    def forget_chunks(self, verification: str) -> None:
        """Take away what its table's verdict has made needless. Raises `DeltaError`."""
        kept = ", ".join(f"'{verdict}'" for verdict in Verdict if verdict is not Verdict.EQUAL)
        with self._writing:
            held = open_table(self.folder)
            assert held is not None
            held.delete(f"verification = '{verification}' AND chunk IS NOT NULL AND verdict NOT IN ({kept})")


def due_row(table: TableId, due: DueChunk, table_id: str) -> dict[str, Any]:
    """A chunk that is to be compared; `table_id`: Delta's, of the current state."""
    return {
        **_chunk_facts(table, due),
        "verdict": DUE,
        "reason": "",
        "due": json.dumps({"table_id": table_id, "due": asdict(due)}, ensure_ascii=False),
    }


def chunk_row(table: TableId, due: DueChunk, finding: Finding) -> dict[str, Any]:
    return {**_chunk_facts(table, due), **finding_facts(finding)}


def table_row(
    table: TableId,
    verification: str,
    gsn: int,
    cut: int,
    position: str,
    rows: int | None,
    finding: Finding | None,
    focus: LandedFocus | None = None,
    unproven: LandedFocus | None = None,
    since_gsn: int | None = None,
) -> dict[str, Any]:
    """`gsn`: of the event that began it. Without a finding it goes on; with a position, all of its chunks are there."""
    said: dict[str, Any] = {"verdict": DUE, "reason": ""} if finding is None else finding_facts(finding)
    facts = {"verification": verification, "gsn": gsn, "cut": cut, "position": position, "source_rows": rows}
    foci = {"focus": focus, "unproven": unproven}
    asked = {name: json.dumps(asdict(found)) if found is not None else None for name, found in foci.items()}
    return {**table_facts(table), **facts, **said, **asked, "since_gsn": since_gsn}


def finding_facts(finding: Finding) -> dict[str, Any]:
    leaves = [asdict(leaf) for leaf in finding.leaves]
    rows = [asdict(row) for row in finding.rows[:MOST_ROWS]]
    return {
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "lake_rows": finding.lake_rows,
        "leaves_equal": finding.equal_leaves,
        "leaves": json.dumps(leaves) if leaves else None,
        "rows": json.dumps(rows, ensure_ascii=False) if rows else None,
    }


def _chunk_facts(table: TableId, due: DueChunk) -> dict[str, Any]:
    chunk = due.digest.chunk
    return {
        **table_facts(table),
        "verification": chunk.dump,
        "chunk": chunk.chunk,
        "range": chunk.range,
        "lower": chunk.lower,
        "upper": chunk.upper,
        "cut": due.digest.cut,
        "gsn": chunk.gsn,
        "position": chunk.position,
        "read_at_us": chunk.read_at_us,
        "source_rows": chunk.rows,
    }
