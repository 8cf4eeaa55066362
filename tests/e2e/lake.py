"""Reading the lake as a user without Spark would, and waiting until it equals the source."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from menura.naming import lake_column

from spark_sink import reading
from spark_sink.errors import TableNotInLake
from spark_sink.reading import current_state
from spark_sink.work import TableId
from tests.compare import Comparison, compare, read_source
from tests.servers import Server


def table_path(lake: Path, tenant: str, source: str, database: str, table: str, part: str) -> Path:
    return Path(TableId(tenant, source, database, table).folder(str(lake))) / part


def rows_in_lake(lake: Path | str, table: TableId) -> list[dict[str, Any]]:
    """The table's current state; without rows while there is no such table."""
    try:
        return current_state(str(lake), table).to_pylist()
    except TableNotInLake:
        return []


def compare_table(
    lake: Path, tenant: str, source: str, server: Server, database: str, table: str, ignored: Iterable[str] = ()
) -> Comparison:
    """The source's table beside its current state in the lake; an empty lake table when there is none yet."""
    columns, rows = read_source(server, database, table, ignored)
    in_lake = rows_in_lake(lake, TableId(tenant, source, database, table))
    return compare(f"{database}.{table}", columns, rows, in_lake, {c.name: lake_column(c.name) for c in columns})


def wait_until_equal(
    lake: Path,
    tenant: str,
    source: str,
    server: Server,
    database: str,
    tables: Iterable[str],
    seconds: float = 600,
    ignored: Iterable[str] = (),
) -> None:
    """Until every table's current state equals its source, whose writers have stopped; else what differs."""
    deadline = time.monotonic() + seconds
    waiting = list(tables)
    while waiting:
        asked = time.monotonic()
        compared = compare_table(lake, tenant, source, server, database, waiting[0], ignored)
        now = time.monotonic()
        if compared.equal:
            waiting.pop(0)
        elif now > deadline:
            raise AssertionError(f"not equal after {seconds:.0f} s: {compared}")
        else:
            time.sleep(max(0.5, 2 * (now - asked)))  # large tables are not compared all the time


def wait_for_changelog(
    lake: Path, tenant: str, source: str, database: str, table: str, expected: Mapping[str, int], seconds: float = 600
) -> None:
    """Until the changelog holds these counts: its last changes may undo each other, and leave the current state."""
    deadline = time.monotonic() + seconds
    while (found := changelog_counts(lake, tenant, source, database, table)) != expected:
        assert time.monotonic() < deadline, f"{table}: {found} in the changelog, {expected} in the source's log"
        time.sleep(0.5)


def recorded_events(lake: Path) -> list[dict[str, Any]]:
    """Of all tables; a table's rows are there a moment before its events. Empty while nothing was recorded."""
    try:
        rows: list[dict[str, Any]] = DeltaTable(str(lake / "_menura" / "events")).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return rows


def row_count(lake: Path, tenant: str, source: str, database: str, table: str, part: str = "current") -> int:
    """Rows of a lake table; 0 while there is no such table."""
    try:
        if part == "current":
            return reading.row_count(str(lake), TableId(tenant, source, database, table))
        path = table_path(lake, tenant, source, database, table, part)
        return int(DeltaTable(str(path)).to_pyarrow_dataset().count_rows())
    except (TableNotInLake, TableNotFoundError):
        return 0


def changelog_counts(lake: Path, tenant: str, source: str, database: str, table: str) -> Counter[str]:
    """How many rows of each change type the changelog holds; fails when a change's `_gsn` stands there twice."""
    path = table_path(lake, tenant, source, database, table, "changelog")
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=["_gsn", "_change_type"])
    # Rows of a dump's chunk have one number, that of the last change which is surely in them.
    numbers = rows.filter(pc.not_equal(rows["_change_type"], "snapshot"))["_gsn"]
    assert pc.count_distinct(numbers).as_py() == len(numbers), f"{table}: a change number stands twice in the changelog"
    return Counter(rows["_change_type"].to_pylist())
