"""What one source is doing now: written by its plugins, reported by Control_Config and Control_Heartbeat.

Nothing is durable but what `former_policies` keeps: the desired state comes again when a stream opens, the rest is
found out by working.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from menura.bounds import clean_int64
from menura.error_message import as_message
from menura.errors import MenuraError
from menura.v1 import config_pb2

from agent.positions import Position
from agent.runtime.former_policies import FormerPolicies
from agent.settings import SourceConfig
from agent.table_positions import Table
from agent.unlogged import UnloggedChanges
from agent.veto.policy import Request

TableStates = Mapping[Table, tuple[config_pb2.TableState.State, MenuraError | None]]

#: the part whose errors are those of the check at the start; each part reports for itself afterwards
START = "start"
#: the part that reads the log
READING = "changes"
#: the log's end that was asked for longer ago says nothing about now
END_SECONDS = 15.0
#: what a log says of an error, by whether it is terminal
FAILED = {True: "source failed", False: "source failed, trying again"}


@dataclass(frozen=True, slots=True)
class LogKept:
    """How long a server keeps its log from now on. With neither limit it has one, and how much that is is not known."""

    seconds: int | None = None
    #: that may still be written before it removes what is to be read
    room_bytes: int | None = None
    #: until somebody removes it
    is_unlimited: bool = False


@dataclass(slots=True)
class Counters:
    """Since the process began."""

    rows: int = 0
    transactions: int = 0
    read_bytes: int = 0
    sent_bytes: int = 0
    #: of the thread that reads and decodes
    decode_cpu_us: int = 0
    #: of reading the log, its first beginning left out
    restarts: int = -1


class SourceStates:
    """The states of the sources that run; what is taken from it is of one moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: Mapping[str, SourceState] = {}
        self._on_change: Callable[[str], None] = lambda source: None

    def __getitem__(self, name: str) -> "SourceState | None":
        return self._states.get(name)

    def all(self) -> "tuple[SourceState, ...]":
        return tuple(self._states.values())

    def codes(self) -> Mapping[str, str]:
        """Of each source the code of its error; empty: it has none."""
        errors = {state.name: state.error() for state in self.all()}
        return {name: "" if error is None else error.code for name, error in errors.items()}

    def tell(self, on_change: Callable[[str], None]) -> None:
        """Call it after each change of what one of them says, from any thread."""
        with self._lock:
            self._on_change = on_change
            for state in self._states.values():
                state.on_change = on_change

    def add(self, state: "SourceState") -> None:
        with self._lock:
            state.on_change = self._on_change
            self._states = {**self._states, state.name: state}

    def remove(self, name: str) -> None:
        with self._lock:
            self._states = {other: state for other, state in self._states.items() if other != name}


class SourceState:
    def __init__(self, config: SourceConfig, started: int = 1, folder: Path | None = None) -> None:
        """`started`: how often the source has begun in this process; `folder`: for what it keeps, None: nothing."""
        self._config = config
        self._started = started
        #: of the host, under which rows have left
        self.former_policies = FormerPolicies(config.filter, folder, config.name)
        self._lock = threading.Lock()
        self._flavor = ""
        self._version = ""
        #: None before a desired state of this session
        self._generation: int | None = None
        self._desired: tuple[Table, ...] = ()
        self._notice = ""
        self._tables: TableStates = {}
        #: whose earlier rows are being read
        self._dumping: frozenset[Table] = frozenset()
        #: why such rows can't be read now
        self._held_dumps: Mapping[Table, MenuraError] = {}
        #: of whose rows the log has lacked columns since the agent's start
        self._partial: set[Table] = set()
        #: rules of the filter that don't fit
        self._findings: tuple[MenuraError, ...] = ()
        self._errors: dict[str, MenuraError] = {}
        #: why the gateway takes nothing more of the log: heartbeats tell it, since it may come and go with a gateway
        self._refusal: MenuraError | None = None
        #: what is there in place of the server that was read
        self._other_server: config_pb2.OtherServer | None = None
        self._read: Position | None = None
        self._read_commit_us = 0
        self._end: Position | None = None
        self._end_seen_us = 0
        self._caught_up_us = 0
        self.counters = Counters()
        #: waits for credit so far, the running one included, in microseconds
        self.credit_wait_us: Callable[[], int] = lambda: 0
        #: what may be sent before it waits
        self.credit_bytes: Callable[[], int | None] = lambda: None
        #: None: not known
        self.log_kept: LogKept | None = None
        #: called after each change of what `effective` says, from any thread
        self.on_change: Callable[[str], None] = lambda source: None

    @property
    def name(self) -> str:
        return self._config.name

    def refusal(self, request: Request) -> MenuraError | None:
        """Why the host's policy grants it to no gateway; None: it does."""
        return self._config.filter.veto.refusal(request)

    def check(self, request: Request) -> None:
        """Raises that."""
        refusal = self.refusal(request)
        if refusal is not None:
            raise refusal

    def seen(self, flavor: str, version: str) -> None:
        with self._lock:
            self._flavor, self._version = flavor, version

    def hello(self) -> config_pb2.SourceHello:
        with self._lock:
            return config_pb2.SourceHello(
                source=self.name,
                flavor=self._flavor,
                server_version=self._version,
                address=self._config.address,
                policy_sha256=self._config.filter.sha256(),
                started=self._started,
            )

    def new_session(self) -> None:
        """What a former session desired says nothing."""
        with self._lock:
            self._generation = None

    def desire(self, state: config_pb2.DesiredState) -> str:
        """Take over a desired state. What is new to be told of it."""
        with self._lock:
            notice = state.notice if state.notice != self._notice else ""
            self._notice = state.notice
            self._generation = state.generation
            self._desired = tuple((name.database, name.table) for name in state.tables)
        self.on_change(self.name)
        return notice

    def tables_are(self, tables: TableStates) -> None:
        with self._lock:
            if tables == self._tables:
                return
            self._tables = dict(tables)
        self.on_change(self.name)

    def reads_log(self) -> None:
        """From here on, under the policy in force. Raises `StateFolderUnusable`."""
        if self.former_policies.reads():
            self.on_change(self.name)

    def looked_at_tables(self) -> None:
        """All of them, with their columns. Raises `StateFolderUnusable`."""
        if self.former_policies.settle():
            self.on_change(self.name)

    def findings_are(self, findings: Iterable[MenuraError]) -> None:
        """The filter was compared with the server's tables: which of its rules don't fit."""
        with self._lock:
            self._findings = tuple(findings)
        self.on_change(self.name)

    def dumping_are(self, tables: frozenset[Table]) -> None:
        """The tables with a dump that is not over."""
        with self._lock:
            if tables == self._dumping:
                return
            self._dumping = tables
        self.on_change(self.name)

    def held_dumps_are(self, held: Mapping[Table, MenuraError]) -> None:
        """Why dumps of tables wait after an error; what holds up others is not said here."""
        with self._lock:
            if held == self._held_dumps:
                return
            self._held_dumps = dict(held)
        self.on_change(self.name)

    def saw_partial_rows(self, table: Table) -> None:
        """Rows of the table came from the log without some of their columns."""
        with self._lock:
            self._partial.add(table)

    def is_partial(self, table: Table) -> bool:
        with self._lock:
            return table in self._partial

    def failed(self, part: str, error: MenuraError) -> bool:
        """Record a part's error; False when it is the one already known, so that it is logged once."""
        with self._lock:
            is_known = any(str(known) == str(error) for known in self._errors.values())
            is_same = str(self._errors.get(part, "")) == str(error)
            if part == READING:
                self._errors.pop(START, None)
            self._errors[part] = error
        if not is_same:
            self.on_change(self.name)
        return not is_known

    def offers(self, other: config_pb2.OtherServer) -> None:
        """A server that is read when somebody has accepted it; told with the error that says so."""
        with self._lock:
            self._other_server = other

    def recovered(self, part: str) -> None:
        with self._lock:
            known = [self._errors.pop(gone, None) for gone in (part, START)]
            if part == READING:
                self._other_server = None
        if any(known):
            self.on_change(self.name)

    def refused(self, error: MenuraError | None) -> None:
        """The gateway takes nothing more of the log; None: it does again."""
        with self._lock:
            self._refusal = error

    def error(self) -> MenuraError | None:
        with self._lock:
            return next(iter(self._errors.values()), None)

    def effective(self) -> config_pb2.EffectiveState | None:
        """The whole effective state; None before a desired one has come."""
        with self._lock:
            if self._generation is None:
                return None
            unread = self._reading_error()
            tables = [self._table_state(table, unread) for table in self._desired]
            warnings = [error for error in self._errors.values() if str(error) != str(unread)]
            warnings += self._findings
            effective = config_pb2.EffectiveState(source=self.name, generation=self._generation, tables=tables)
            if unread is not None and self._other_server is not None:
                effective.other_server.CopyFrom(self._other_server)
        if unread is not None:
            effective.error.CopyFrom(as_message(unread))
        effective.warnings.extend(map(as_message, warnings))
        return effective

    def _reading_error(self) -> MenuraError | None:
        """Why the log is not read, or would not be: while there is nothing to read, whatever part says so."""
        first = next(iter(self._errors.values()), None) if not self._desired else None
        return self._errors.get(READING) or self._errors.get(START) or first

    def _table_state(self, table: Table, unread: MenuraError | None) -> config_pb2.TableState:
        database, name = table
        verdict = self._config.filter.verdict(database, name)
        state, error = self._tables.get(table, (config_pb2.TableState.PENDING, None))
        if error is None and unread is not None:
            state, error = config_pb2.TableState.WAITING, unread
        elif table in self._dumping and error is None:
            state, error = config_pb2.TableState.DUMPING, self._held_dumps.get(table)
        if not verdict.allowed:
            state, error = config_pb2.TableState.DENIED, self._config.filter.denial(self.name, database, name)
        shown = config_pb2.TableState(
            table=config_pb2.TableName(database=database, table=name),
            state=state,
            ignored_columns=sorted(self._config.filter.told_columns(table)),
            most_rereads_per_hour=self._most_rereads_per_hour(table),
            withheld=self.former_policies.withheld(table),
        )
        if error is not None:
            shown.error.CopyFrom(as_message(error))
        return shown

    def _most_rereads_per_hour(self, table: Table) -> int:
        is_reread = self._config.unlogged.of(*table) is UnloggedChanges.REREAD
        return self._config.dump.max_rereads_per_hour if is_reread else 0

    def read_is(self, position: Position, commit_us: int) -> None:
        """The position read last and the commit time of its last transaction (0: not known)."""
        with self._lock:
            self._read = position
            self._read_commit_us = commit_us or self._read_commit_us
            self._note_caught_up()

    def end_is(self, position: Position | None) -> None:
        """The end of the server's log, just asked for; None: not known, nor how long the server keeps its log."""
        with self._lock:
            if position is None:
                self.log_kept = None
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
                decode_cpu_us=self.counters.decode_cpu_us,
                restarts=max(0, self.counters.restarts),
                credit_bytes=self.credit_bytes(),
            )
            kept = self.log_kept
            lag_us = self._lag_us()
            error = self._reading_error() or self._refusal
        if lag_us is not None:
            status.lag_us = lag_us
        if kept is not None:
            _tell_kept(status, kept)
        if error is not None:
            status.error.CopyFrom(as_message(error))
        return status

    def _lag_us(self) -> int | None:
        """0 at the log's end; else since it was last caught up or the last commit read, whichever is later.

        None: not known, so also while the log can't be read or nothing of it lands, or its end has not been heard of
        lately.
        """
        if (self._reading_error() or self._refusal) is not None:
            return None
        if time.time_ns() // 1000 - self._end_seen_us > END_SECONDS * 1_000_000:
            return None
        if self._read is None or self._end is None or not self._read.is_comparable(self._end):
            return None
        if self._read.covers(self._end) and self._end.covers(self._read):
            return 0
        known = [at_us for at_us in (self._caught_up_us, self._read_commit_us) if at_us]
        return max(1, time.time_ns() // 1000 - max(known)) if known else None


def _tell_kept(status: config_pb2.SourceStatus, kept: LogKept) -> None:
    """What a server says, which may be below 0 where it is over its limit, in the bounds of the contract."""
    status.log_is_unlimited = kept.is_unlimited
    if kept.seconds is not None:
        status.log_retention_seconds = clean_int64(kept.seconds)
    if kept.room_bytes is not None:
        status.log_room_bytes = clean_int64(kept.room_bytes)
