"""Waiting until the lake has settled, and saying of each table whether it equals its source.

Settled: a last transaction of the source is in the lake, no table has a note that its rows may be stale, no dump runs,
and a further transaction, made after all that, is in the lake too.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from spark_sink.lake.records import Records
from tests.churn.kind import MARKER
from tests.e2e.lake import table_path
from tests.live_source import LiveSource
from tests.stack import Stack, wait_for

SETTLE_SECONDS = 600.0
#: for a table to be equal once all is settled: the lake may write the marker's row before those of its batch
EQUAL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    table: str
    #: equal, different or stopped
    word: str
    code: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.table:14} {' '.join(part for part in (self.word, self.code, self.detail) if part)}"


@dataclass(frozen=True, slots=True)
class Lake:
    running: Stack
    source: str
    #: on which the tables are
    origin: LiveSource
    #: of errors after which a table waits for nothing
    codes: frozenset[str]
    #: the tables were empty when their syncs began, without a dump: no rows are missing, whatever a table says
    began_empty: bool = False
    #: whose dump had failed, as of one whose table got another key: another one was asked for, as the message says
    dumped_again: set[str] = field(default_factory=set)

    @property
    def database(self) -> str:
        return self.origin.namespace

    def settle(self, tables: Iterable[str], seconds: float = SETTLE_SECONDS) -> str:
        """Empty, or what did not settle in so many seconds."""
        names = list(tables)
        try:
            self._wait_for_marker(seconds)
            wait_for("no table to wait for a re-read", lambda: not self._unsettled(names) or None, seconds, 0.5)
            self._wait_for_marker(seconds)
        except TimeoutError as late:
            return f"{late}; {self._unsettled(names)}"
        return ""

    def verdicts(self, tables: Iterable[str]) -> list[Verdict]:
        return [self._verdict(table) for table in tables]

    def dumps(self) -> dict[str, int]:
        """How many, by their cause and how they ended."""
        found: Counter[str] = Counter()
        parameters = {"limit": 1000}
        while True:
            page = self.running.get(f"/api/v1/tenants/{self.running.tenant}/dumps", **parameters)
            found.update(f"{dump['cause'] or 'asked for'} {dump['state']}" for dump in page["dumps"])
            if page["next_cursor"] is None:
                return dict(found)
            parameters["cursor"] = page["next_cursor"]

    def _wait_for_marker(self, seconds: float) -> None:
        self.origin.run(f"INSERT INTO {MARKER} (id) VALUES (DEFAULT)")
        ((last,),) = self.origin.run(f"SELECT MAX(id) FROM {MARKER}")
        path = table_path(self.running.lake, self.running.tenant, self.source, self.database, MARKER, "current")

        def arrived() -> bool | None:
            try:
                ids = DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist()
            except TableNotFoundError:
                return None
            return last in ids or None

        wait_for(f"row {last} of {MARKER} in the lake", arrived, seconds, 0.5)

    def _unsettled(self, tables: list[str]) -> dict[str, str]:
        """By table what it waits for; one that has stopped and gets no dump by itself waits for nothing."""
        waiting: dict[str, str] = {}
        for table in tables:
            said = self.running.table(self.source, self.database, table)
            problem = said["problem"]
            is_ended = said["state"] == "failed" and problem is not None and problem["terminal"]
            if is_ended and (said["unlogged"] is None or problem["code"] in self.codes):
                continue
            is_missed = said["earlier_rows_missing"] and not self.began_empty
            if is_missed and said["dump"] is None and table not in self.dumped_again:
                self.running.post(f"{self.running.table_path(self.source, self.database, table)}/dump")
                self.dumped_again.add(table)
            if is_missed:
                waiting[table] = f"{said['state']}, rows are missing: {said['earlier_rows_missing']}"
            elif said["unlogged"] is not None:
                waiting[table] = f"{said['state']}, unlogged: {said['unlogged']}"
            elif said["dump"] is not None:
                waiting[table] = f"{said['state']}, dump {said['dump']['state']}: {said['dump']['reason']}"
            elif said["state"] != "streaming":
                waiting[table] = f"{said['state']}: {said['problem']}"
        if problem := self.running.source(self.source)["problem"]:
            waiting["the source"] = str(problem)
        return waiting

    def _verdict(self, table: str) -> Verdict:
        said = self.running.table(self.source, self.database, table)
        if said["problem"] is not None and said["state"] == "failed":  # else a stage is silent for a moment
            return Verdict(table, "stopped", said["problem"]["code"], said["problem"]["message"])
        for stopped in Records(str(self.running.lake)).stopped_tables().values():
            if (stopped.table.database, stopped.table.table) == (self.database, table):
                return Verdict(table, "stopped", stopped.code, f"in the lake: {stopped.message}")
        try:
            wait_for(f"{table} to be equal", lambda: self._difference(table) == "" or None, EQUAL_SECONDS, 1)
        except TimeoutError:
            return Verdict(table, "different", said["state"], self._difference(table))
        return Verdict(table, "equal")

    def _unsent(self, table: str) -> set[str]:
        """Generated columns whose values the log lacks, as the table's state says; no others may be kept back."""
        unsent = set(self.running.table(self.source, self.database, table)["ignored_columns"])
        if unsent:
            generated = self.origin.run(
                "SELECT LOWER(column_name) FROM information_schema.columns WHERE generation_expression <> ''"
                f" AND table_schema = '{self.database}' AND table_name = '{table}'"
            )
            assert unsent <= {name for (name,) in generated}, unsent
        return unsent

    def _difference(self, table: str) -> str:
        """Empty: none."""
        try:
            compared = self.origin.compare(self.running, self.source, table, self._unsent(table))
        except AssertionError as other:
            return f"a value of the lake has another type than the source's column: {other}"
        return "" if compared.equal else str(compared)
