"""Verdicts as a sink tells them, for tests."""

from typing import Any

from menura.lake_report import LakeLeaf, LakeVerdict

LEAF = LakeLeaf("16384", "32768", 16_384, 16_383)


def verdict(number: int, kind: str = "equal", table: str = "orders", **changed: Any) -> LakeVerdict:
    """The n-th of a table, found at second n."""
    differs = kind == "differs"
    facts: dict[str, Any] = {
        "tenant": "acme",
        "source": "shop",
        "database": "shop",
        "table": table,
        "verification": f"{table}-{number}",
        "verdict": kind,
        "reason": "" if kind == "equal" else "rows differ" if differs else "a part of the table was not compared",
        "position": f"gtid:1-{number}",
        "cut": number,
        "source_rows": 40_000,
        "lake_rows": 39_999 if differs else 40_000,
        "leaves_equal": 2 if differs else 3 if kind == "equal" else 0,
        "leaves_differ": int(differs),
        "leaves_unknown": 0 if kind in ("equal", "differs") else 3,
        "leaves": (LEAF,) if differs else (),
        "read_at_us": number * 1_000_000,
        "at_us": number * 1_000_000 + 1,
        **changed,
    }
    return LakeVerdict(**facts)
