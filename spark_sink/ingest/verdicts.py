"""What verifications have found of tables, as the control plane is told it.

Comes in: rows of LAKE/_menura/validation, chunks with their findings. Goes out: `menura.lake_report.LakeVerdict`s,
bounded, and which of a table's are kept. Nothing here is durable: the rows are.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from menura.key_values import words
from menura.lake_report import (
    MAX_BOUND_CHARS,
    MAX_LEAVES,
    MAX_POSITION_CHARS,
    MAX_REASON_CHARS,
    LakeLeaf,
    LakeVerdict,
    clipped,
)
from menura.landed_digest import decode_focus
from menura.landing import LandedChunk

from spark_sink.lake.digests import Finding, Verdict
from spark_sink.work import DueChunk, TableId


def tally(found: Iterable[tuple[DueChunk, Finding | None]]) -> dict[str, int]:
    """Of a verification's chunks, as its table's row has it: leaves, and when the last rows were read."""
    pairs = [(due.digest.chunk, finding or Finding(Verdict.UNKNOWN)) for due, finding in found]
    leaves = sum(len(chunk.digest.leaves) for chunk, _ in pairs if chunk.digest is not None)
    equal, differ = (
        sum(each.equal_leaves for _, each in pairs),
        sum(len(each.leaves) + len(each.rows) for _, each in pairs),
    )
    read_at_us = max((_read_at_us(chunk) for chunk, _ in pairs), default=0)
    return {"leaves_equal": equal, "leaves_unknown": max(0, leaves - equal - differ), "read_at_us": read_at_us}


def _read_at_us(chunk: LandedChunk) -> int:
    """Behind a repair a verdict is about the rest of the table too, which was read earlier."""
    within = chunk.digest.within if chunk.digest is not None else None
    is_of_rest = within is not None and within.repaired_by and within.rest_equal_at_us
    return min(chunk.read_at_us, within.rest_equal_at_us) if within is not None and is_of_rest else chunk.read_at_us


def verdict_of(table: TableId, row: Mapping[str, Any]) -> LakeVerdict:
    """Of a table's row that says how its verification ended."""
    leaves = [*json.loads(row["rows"] or "[]"), *json.loads(row["leaves"] or "[]")]
    return LakeVerdict(
        table.tenant,
        table.source,
        table.database,
        table.table,
        verification=row["verification"],
        verdict=row["verdict"],
        reason=clipped(row["reason"] or "", MAX_REASON_CHARS),
        position=clipped(row["position"] or "", MAX_POSITION_CHARS),
        cut=row["cut"],
        source_rows=row["source_rows"] or 0,
        lake_rows=row["lake_rows"] or 0,
        leaves_equal=row["leaves_equal"] or 0,
        leaves_differ=len(leaves),
        leaves_unknown=row["leaves_unknown"] or 0,
        leaves=tuple(map(_leaf, leaves[:MAX_LEAVES])),
        read_at_us=row["read_at_us"] or 0,
        at_us=row["at_us"],
        since_gsn=(row.get("since_gsn") or 0) if row["verdict"] == Verdict.EQUAL.value else 0,
        unproven=decode_focus(json.loads(row["unproven"])) if row.get("unproven") else None,
    )


def _leaf(said: Mapping[str, Any]) -> LakeLeaf:
    """A row that differs, a bucket of keys' hashes, or a range of keys."""
    rows = said["source_rows"], said["lake_rows"]
    if "key" in said:
        columns = clipped(", ".join(said["columns"]), MAX_BOUND_CHARS)
        return LakeLeaf("", "", *rows, clipped(said["key"] or f"hash {said['hash']}", MAX_BOUND_CHARS), columns)
    if said.get("bits"):
        return LakeLeaf("", "", *rows, f"bucket {said['bucket']} of {1 << said['bits']}")
    lower, upper = (words(said.get("kinds", ()), said[end], ", ") for end in ("lower", "upper"))
    return LakeLeaf(clipped(lower, MAX_BOUND_CHARS), clipped(upper, MAX_BOUND_CHARS), *rows)


def kept(verdicts: Sequence[LakeVerdict]) -> tuple[LakeVerdict, ...]:
    """The newest one, and of those that are equal and of those that differ the newest; the oldest first."""
    newest = {verdict.verdict: place for place, verdict in enumerate(verdicts)}
    places = {len(verdicts) - 1, newest.get("equal", -1), newest.get("differs", -1)} - {-1}
    return tuple(verdicts[place] for place in sorted(places))
