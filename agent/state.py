"""What one source is doing now: written by its plugins, reported by Control_Config and Control_Heartbeat.

Nothing is durable: the desired state comes again when a stream opens, the rest is found out by working.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from menura.errors import MenuraError
from menura.v1 import config_pb2

from agent.config import SourceConfig
from agent.errors import TableDenied, as_message

#: (database, table)
Table = tuple[str, str]
TableStates = Mapping[Table, tuple[config_pb2.TableState.State, MenuraError | None]]

#: the part whose errors are those of the check at the start; each part reports for itself afterwards
START = "start"
#: what a log says of an error, by whether it is terminal
FAILED = {True: "source failed", False: "source failed, trying again"}


class Place(Protocol):
    """A source's position; its text is in the source's own words."""

    def covers(self, other: Self, /) -> bool: ...
    def is_comparable(self, other: Self, /) -> bool: ...


@dataclass(slots=True)
class Counters:
    """Since the process began."""

    rows: int = 0
    transactions: int = 0
    read_bytes: int = 0
    sent_bytes: int = 0


class SourceState:
    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._flavor = ""
        self._version = ""
        #: None before a desired state of this session
        self._generation: int | None = None
        self._desired: tuple[Table, ...] = ()
        self._tables: TableStates = {}
        #: whose earlier rows are being read
        self._dumping: frozenset[Table] = frozenset()
        self._errors: dict[str, MenuraError] = {}
        self._read: Place | None = None
        self._read_commit_us = 0
        self._end: Place | None = None
        self._end_seen_us = 0
        self._caught_up_us = 0
        self.counters = Counters()
        #: waits for credit so far, the running one included, in microseconds
        self.credit_wait_us: Callable[[], int] = lambda: 0
        #: called after each change of what `effective` says, from any thread
        self.on_change: Callable[[str], None] = lambda source: None

    @property
    def name(self) -> str:
        return self._config.name

    def seen(self, flavor: str, version: str) -> None:
        with self._lock:
            self._flavor, self._version = flavor, version

    def hello(self) -> config_pb2.SourceHello:
        with self._lock:
            return config_pb2.SourceHello(
                source=self.name,
                flavor=self._flavor,
                server_version=self._version,
                address=self._config.binlog.address,
                policy_sha256=self._config.filter.sha256(),
            )

    def new_session(self) -> None:
        """Generations count anew with each session."""
        with self._lock:
            self._generation = None

    def desire(self, state: config_pb2.DesiredState) -> None:
        """Take over a desired state; one of an older generation is ignored."""
        with self._lock:
            if self._generation is not None and state.generation < self._generation:
                return
            self._generation = state.generation
            self._desired = tuple((name.database, name.table) for name in state.tables)
        self.on_change(self.name)

    def tables_are(self, tables: TableStates) -> None:
        with self._lock:
            if tables == self._tables:
                return
            self._tables = dict(tables)
        self.on_change(self.name)

    def dumping_are(self, tables: frozenset[Table]) -> None:
        """The tables with a dump that is not over."""
        with self._lock:
            if tables == self._dumping:
                return
            self._dumping = tables
        self.on_change(self.name)

    def failed(self, part: str, error: MenuraError) -> bool:
        """Record a part's error; False when it is the one already known, so that it is logged once."""
        with self._lock:
            is_known = any(str(known) == str(error) for known in self._errors.values())
            self._errors.pop(START, None)
            self._errors[part] = error
        if not is_known:
            self.on_change(self.name)
        return not is_known

    def recovered(self, part: str) -> None:
        with self._lock:
            known = [self._errors.pop(gone, None) for gone in (part, START)]
        if any(known):
            self.on_change(self.name)

    def error(self) -> MenuraError | None:
        with self._lock:
            return next(iter(self._errors.values()), None)

    def effective(self) -> config_pb2.EffectiveState | None:
        """The whole effective state; None before a desired one has come."""
        with self._lock:
            if self._generation is None:
                return None
            tables = [self._table_state(table) for table in self._desired]
            error = next(iter(self._errors.values()), None)
            effective = config_pb2.EffectiveState(source=self.name, generation=self._generation, tables=tables)
        if error is not None:
            effective.error.CopyFrom(as_message(error))
        return effective

    def _table_state(self, table: Table) -> config_pb2.TableState:
        database, name = table
        verdict = self._config.filter.verdict(database, name)
        state, error = self._tables.get(table, (config_pb2.TableState.PENDING, None))
        if table in self._dumping and error is None:
            state = config_pb2.TableState.DUMPING
        if not verdict.allowed:
            state, error = config_pb2.TableState.DENIED, denied(self.name, database, name)
        shown = config_pb2.TableState(
            table=config_pb2.TableName(database=database, table=name),
            state=state,
            ignored_columns=sorted(verdict.ignored_columns),
        )
        if error is not None:
            shown.error.CopyFrom(as_message(error))
        return shown

    def read_is(self, position: Place, commit_us: int) -> None:
        """The position read last and the commit time of its last transaction (0: not known)."""
        with self._lock:
            self._read = position
            self._read_commit_us = commit_us or self._read_commit_us
            self._note_caught_up()

    def end_is(self, position: Place | None) -> None:
        """The end of the server's log, just asked for; None: not known."""
        with self._lock:
            self._end = position
            self._end_seen_us = time.time_ns() // 1000
            self._note_caught_up()

    def _note_caught_up(self) -> None:
        if self._covers_end():
            self._caught_up_us = self._end_seen_us

    def _covers_end(self) -> bool:
        if self._read is None or self._end is None or not self._read.is_comparable(self._end):
            return False  # the end is that of another way of keeping positions, until it is asked for again
        return self._read.covers(self._end)

    def status(self) -> config_pb2.SourceStatus:
        with self._lock:
            status = config_pb2.SourceStatus(
                source=self.name,
                read_position=str(self._read) if self._read else "",
                source_position=str(self._end) if self._end else "",
                rows=self.counters.rows,
                transactions=self.counters.transactions,
                read_bytes=self.counters.read_bytes,
                sent_bytes=self.counters.sent_bytes,
                credit_wait_us=self.credit_wait_us(),
            )
            lag_us = self._lag_us()
            error = next(iter(self._errors.values()), None)
        if lag_us is not None:
            status.lag_us = lag_us
        if error is not None:
            status.error.CopyFrom(as_message(error))
        return status

    def _lag_us(self) -> int | None:
        """0 at the log's end; else since it was last caught up or the last commit read, whichever is later."""
        if self._read is None or self._end is None or not self._read.is_comparable(self._end):
            return None
        if self._read.covers(self._end) and self._end.covers(self._read):
            return 0
        known = [at_us for at_us in (self._caught_up_us, self._read_commit_us) if at_us]
        return max(1, time.time_ns() // 1000 - max(known)) if known else None


def denied(source: str, database: str, table: str) -> TableDenied:
    return TableDenied(
        "starting a table's sync",
        "this agent's own filter policy drops the table",
        data="No row of it leaves the database's host",
        remedy=f"Allow it in sources.{source}.filter of the agent's configuration and restart it, or stop the sync",
        source=source,
        database=database,
        table=table,
    )


def allowed_tables(config: SourceConfig, tables: Iterable[Table]) -> set[Table]:
    return {(database, table) for database, table in tables if config.filter.verdict(database, table).allowed}
