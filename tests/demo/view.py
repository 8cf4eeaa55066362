"""The demo's live view: for each table, what the database holds, what has landed, what the lake shows, how late."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from rich.table import Table

from spark_sink.errors import TableNotInLake
from spark_sink.reading import row_count
from spark_sink.work import TableId
from tests.demo.shop import TABLES
from tests.e2e.lake import table_path
from tests.live_source import LiveSource
from tests.stack import Stack


@dataclass(frozen=True)
class TableLook:
    table: str
    state: str
    source_rows: int
    #: row changes that the gateway has committed
    landed_changes: int
    lake_rows: int
    lag_s: float | None
    #: age of the newest change in the lake
    freshness_s: float | None


@dataclass
class Follower:
    """Asks the database, the API and the lake; keeps one connection to the database."""

    stack: Stack
    database: LiveSource
    source: str
    connection: Any = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.database.connect()

    def look(self) -> list[TableLook]:
        source = f"/api/v1/tenants/{self.stack.tenant}/sources/{self.source}"
        tables = {table["table"]: table for table in self.stack.get(f"{source}/tables")["tables"]}
        lag_us = self.stack.get(source)["lag_us"]
        with self.connection.cursor() as cursor:
            counted = {table: _rows(cursor, table) for table in TABLES}
        looks = []
        for table in TABLES:
            lake_rows, fresh_at_us = self._lake(table)
            said = tables.get(table, {})
            looks.append(
                TableLook(
                    table,
                    said.get("state", "unknown"),
                    counted[table],
                    said.get("rows", 0),
                    lake_rows,
                    None if lag_us is None else lag_us / 1e6,
                    None if fresh_at_us is None else time.time() - fresh_at_us / 1e6,
                )
            )
        return looks

    def _lake(self, table: str) -> tuple[int, int | None]:
        """Rows of the current state and the commit time of the newest change, which is in the files' statistics."""
        place = (self.stack.lake, self.stack.tenant, self.source, self.database.namespace, table)
        try:
            rows = row_count(str(self.stack.lake), TableId(*place[1:]))
            changelog = DeltaTable(str(table_path(*place, "changelog")))
        except (TableNotFoundError, TableNotInLake):
            return 0, None
        newest = changelog.get_add_actions(flatten=True)["max._commit_timestamp_us"].to_pylist()
        return rows, max((at for at in newest if at is not None), default=None)


def _rows(cursor: Any, table: str) -> int:
    """Exactly."""
    cursor.execute(f"SELECT COUNT(*) FROM {table}")
    return int(cursor.fetchone()[0])


def show(looks: Sequence[TableLook], title: str) -> Table:
    view = Table(title=title)
    view.add_column("table")
    view.add_column("state")
    for heading in ("rows in database", "changes landed", "rows in lake", "lag s", "newest change in lake, s ago"):
        view.add_column(heading, justify="right")
    for look in looks:
        colour = "green" if look.state == "streaming" else "yellow"
        view.add_row(
            look.table,
            f"[{colour}]{look.state}",
            f"{look.source_rows:,}",
            f"{look.landed_changes:,}",
            f"{look.lake_rows:,}",
            _seconds(look.lag_s),
            _seconds(look.freshness_s),
        )
    return view


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
