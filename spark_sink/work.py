"""Values that travel between the driver and its tasks: which table, which files, what came of it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from menura.naming import path_segment

CHANGELOG = "changelog"
CURRENT = "current"


def lake_segment(name: str) -> str:
    """A path segment without '%', which delta-rs decodes once too often; different names stay different.

    >>> lake_segment("order lines"), lake_segment("a~20")
    ('order~20lines', 'a~7E20')
    """
    return path_segment(name).replace("~", "~7E").replace("%", "~")


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    tenant: str
    source: str
    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.source}: {self.database}.{self.table}"

    def where(self, cut: int) -> dict[str, str]:
        """Arguments of a `MenuraError`."""
        return {
            "source": f"{self.tenant}/{self.source}",
            "database": self.database,
            "table": self.table,
            "position": f"cut {cut}",
        }

    def folder(self, lake: str) -> str:
        """LAKE/TENANT/SOURCE/DATABASE/TABLE, which holds `changelog` and `current`."""
        return f"{lake}/{self.tenant}/{self.source}/{lake_segment(self.database)}/{lake_segment(self.table)}"

    @property
    def application(self) -> str:
        """Delta's transaction application: its version is the source's cut."""
        return f"{self.tenant}/{self.source}"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A landed file of a table."""

    entry: int
    cut: int
    schema_id: str
    path: str
    rows: int
    bytes: int
    first_gsn: int
    last_gsn: int


class Result(StrEnum):
    APPLIED = "applied"
    #: nothing to do: a replay of what the table already holds
    SKIPPED = "skipped"
    STOPPED = "stopped"
    #: too large for a worker: the driver merges it with Spark
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one table's part of a batch."""

    table: TableId
    result: Result
    #: first entry and last cut of the batch's files; of a stopped table the first of both
    entry: int
    cut: int
    rows: int = 0
    seconds: float = 0.0
    #: None where the table is not exactly at `cut`: it stopped before, or an earlier run brought it further
    changelog_version: int | None = None
    current_version: int | None = None
    code: str = ""
    message: str = ""
    terminal: bool = True
    files: tuple[TableFile, ...] = ()


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A cut of the batch, with or without files."""

    tenant: str
    source: str
    epoch: int
    cut: int
    entry: int
    committed_at_us: int
    first_commit_timestamp_us: int
    last_commit_timestamp_us: int


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """An entry of the log that can't be read, and why."""

    entry: int
    problem: str


Message = Outcome | CutSeen | EntryProblem


def encode(value: Message) -> str:
    return json.dumps(asdict(value), ensure_ascii=False)


def decode(document: str) -> Message:
    facts: dict[str, Any] = json.loads(document)
    if "problem" in facts:
        return EntryProblem(**facts)
    if "result" not in facts:
        return CutSeen(**facts)
    files = tuple(TableFile(**file) for file in facts["files"])
    table = TableId(**facts["table"])
    return Outcome(**{**facts, "table": table, "result": Result(facts["result"]), "files": files})


def split_rows(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[list[CutSeen | EntryProblem], dict[TableId, list[TableFile]]]:
    """Rows of `cut_log_source.ROW_SCHEMA` as cuts (or why there are none) and as tables with their files, in order."""
    cuts: list[CutSeen | EntryProblem] = []
    tables: dict[TableId, list[TableFile]] = {}
    for row in rows:
        if row.get("problem") is not None:
            cuts.append(EntryProblem(row["entry"], row["problem"]))
            continue
        if row.get("path") is None:
            cuts.append(CutSeen(**{name: row[name] for name in CutSeen.__slots__}))
            continue
        table = TableId(row["tenant"], row["source"], row["database"], row["table"])
        tables.setdefault(table, []).append(TableFile(**{name: row[name] for name in TableFile.__slots__}))
    return cuts, tables
