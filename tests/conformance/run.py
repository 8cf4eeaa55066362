"""Every case on a real server, read by a real agent: what was decoded, what stopped, and which events the log held.

Comes in: `cases`. Goes out: `Findings`. The agent is a process of its own, which sends to a gateway double; what it
sent is put together to the table's rows and compared with a SELECT. Rows that differ are a defect, and named as one.
"""

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
from menura.change_batch import CHANGE_TYPE, GSN

from agent.errors import SourceConnectionLost
from agent.sources.mysql.log import constants
from agent.sources.mysql.server.server_log import FIRST_OFFSET
from agent.sources.mysql.stream.table_router import UNLOGGED_COLUMNS
from tests.agent.gateway_double import GatewayDouble, SourceRecord, Table
from tests.agent.native.capture import dump, heartbeats
from tests.agent.native.mutation import payloads
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_rare_events import read
from tests.compare import compare, read_source
from tests.conformance import cases
from tests.conformance.flows import CATCH_UP, FAILS, RECONNECT, RESTART, Flow, parts
from tests.conformance.rows import REMOVES_ROWS, put_together
from tests.servers import Server

DECODED = "decoded"
#: rows changed unlogged: the table goes on, and an event orders a dump that brings them
REREAD = "re-read"
#: as decoded, but for generated columns whose values the log lacks: they are not sent, and an event says so
NOT_SENT = "not sent"
#: rows that differ from the server's: a defect
WRONG = "WRONG"
NO_ROW = "holds no row"
SOURCE = "conformance"
WAIT_SECONDS = 600.0
#: its rows come after those of a case: when they are there, the case was read
SENTINEL: Table = ("flows", "sentinel")
_NAMES = {
    number: name
    for name, number in vars(constants).items()
    if name.isupper() and ("_EVENT" in name) and isinstance(number, int) and not name.startswith("LOG_EVENT")
}


@dataclass
class Findings:
    """Of one server."""

    #: setting: type: outcome
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    #: flow: outcome
    flows: dict[str, str] = field(default_factory=dict)
    #: event type: settings and flows in whose log it was
    events: dict[str, list[str]] = field(default_factory=dict)
    #: event type: what was made of one that the server sends and does not log
    sent: dict[str, str] = field(default_factory=dict)

    def saw(self, case: str, types: set[int]) -> None:
        for number in types:
            self.events.setdefault(name_of(number), []).append(case)

    def outcome(self, event: str) -> str:
        """Of the cases in whose log the event was: decoded, or why every one of them stopped; '' if it was in none."""
        outcomes = [
            outcome
            for case in self.events.get(event, ())
            for outcome in (self.types.get(case) or {case: self.flows[case]}).values()
        ]
        return DECODED if DECODED in outcomes else next(iter(outcomes), "")


def name_of(number: int) -> str:
    return _NAMES.get(number, f"type {number}")


@dataclass
class _Reader:
    """The agent that reads now; a new one after the source has stopped."""

    record: SourceRecord
    gateway: GatewayDouble

    def last_gsn(self) -> int:
        return max((batch.raw.last_gsn for batch in self.record.batches), default=0)

    def changes(self) -> dict[Table, list[dict[str, Any]]]:
        """Of each table in the order of their numbers; where all of its rows went at once is one too: TRUNCATE."""
        found: dict[Table, list[dict[str, Any]]] = defaultdict(list)
        for batch in self.record.batches:
            found[batch.table] += batch.rows.to_pylist()
        for cut in self.record.committed:
            for event in cut.events:
                if event.removes_rows:
                    removal = {GSN: event.gsn, CHANGE_TYPE: REMOVES_ROWS}
                    found[event.table.database, event.table.table].append(removal)
        for rows in found.values():
            rows.sort(key=lambda change: change[GSN])
        return found


def examine(
    running: Server,
    folder: Path,
    types: Sequence[cases.Type],
    settings: Sequence[cases.Setting],
    flows: Sequence[Flow],
) -> Findings:
    """Settings, with every type, and flows on one running server."""
    findings = Findings()
    running.create_replication_user()
    for number, heartbeat in heartbeats(running):
        with tempfile.TemporaryDirectory() as state:
            sink, error = read(Path(state), heartbeat)
        is_passed = isinstance(error, SourceConnectionLost) and sink.position.offset == FIRST_OFFSET
        findings.sent[name_of(number)] = NO_ROW if is_passed else str(error.code)
    folder.chmod(0o755)
    _create_types(running, types, settings)
    _create_flows(running, flows)
    work = [*_of_settings(types, settings), *_of_flows(flows, folder)]
    while work:
        with _reading(running, list(dict.fromkeys(table for case in work for table in case.tables)), folder) as reader:
            while work and _examine(running, reader, work.pop(0), findings):
                pass
    return findings


@dataclass(frozen=True)
class _Case:
    name: str
    database: str
    tables: dict[Table, str]
    before: tuple[str, ...]
    statements: tuple[str, ...]
    after: tuple[str, ...]
    is_setting: bool
    #: where its one table is compared through another one, and by what
    shown_by: str = ""
    key: tuple[str, ...] = ("id",)


def _database(settings: Sequence[cases.Setting], number: int) -> str:
    """Tables are made once, and once more under a setting that changes what they are."""
    return f"s{number}" if settings[number].changes_tables else "s"


def _create_types(running: Server, types: Sequence[cases.Type], settings: Sequence[cases.Setting]) -> None:
    made = {_database(settings, number): setting for number, setting in reversed(list(enumerate(settings)))}
    for database, setting in made.items():
        running.run(*setting.on, f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        running.run(*(cases.table_of(f"t{n}", type_) for n, type_ in enumerate(types)), database=database)
        if setting.off:
            running.run(*setting.off)


def _create_flows(running: Server, flows: Sequence[Flow]) -> None:
    running.run(
        "CREATE DATABASE flows CHARACTER SET utf8mb4",
        *(f"CREATE TABLE flows.f{number} (id INT PRIMARY KEY, note VARCHAR(40))" for number, _ in enumerate(flows)),
        "CREATE TABLE flows.sentinel (id INT AUTO_INCREMENT PRIMARY KEY)",
    )


def _of_settings(types: Sequence[cases.Type], settings: Sequence[cases.Setting]) -> Iterator[_Case]:
    for number, setting in enumerate(settings):
        database = _database(settings, number)
        statements = [*cases.SESSION, *setting.session]
        for n, type_ in enumerate(types):
            statements += cases.rows_of(f"t{n}", type_, keeps_keys=setting.keeps_keys)
        names = {(database, f"t{n}"): type_.name for n, type_ in enumerate(types)}
        yield _Case(setting.name, database, names, setting.on, tuple(statements), setting.off, is_setting=True)


def _of_flows(flows: Sequence[Flow], folder: Path) -> Iterator[_Case]:
    named = parts(folder)
    for number, flow in enumerate(flows):
        table = f"f{number}"
        statements = tuple(statement.format(t=table, **named) for statement in flow.statements)
        shown_by = flow.shown_by.format(t=table)
        names = {("flows", table): flow.name}
        yield _Case(flow.name, "flows", names, flow.on, statements, flow.off, False, shown_by, flow.key)


@contextmanager
def _reading(running: Server, tables: list[Table], folder: Path) -> Iterator[_Reader]:
    """An agent that reads these tables from now on, and the sentinel."""
    gateway = GatewayDouble()
    gateway.sync(SOURCE, *dict.fromkeys((*tables, SENTINEL)), now=True)
    source = {"client": client(running)}
    config = write_config(folder, gateway.address, {SOURCE: source})
    codes = range(20, 60)  # of an agent that is told to stop while its only source has failed
    try:
        with running_agent(config, folder / "agent.log", 0, *codes):
            record = gateway.source(SOURCE)
            gateway.wait(lambda: record.committed or any(said.error.terminal for said in record.errors), WAIT_SECONDS)
            assert record.committed, [error.error.found for error in record.errors]
            yield _Reader(record, gateway)
    finally:
        gateway.stop()


def _examine(running: Server, reader: _Reader, case: _Case, findings: Findings) -> bool:
    """Run a case and wait until the agent has read it; False: a new agent has to read the next one."""
    running.run(*case.before, "FLUSH BINARY LOGS")
    first = str(running.run("SHOW BINARY LOGS")[-1][0])
    first_gsn = reader.last_gsn()
    _execute(running, reader, *case.statements, database=case.database)
    files = [str(name) for name, *_ in running.run("SHOW BINARY LOGS") if str(name) >= first]
    findings.saw(case.name, {kind for file in files for kind in _types_in(dump(running, file, annotated=True))})
    if case.after:
        running.run(*case.after)
    code = _wait_until_read(running, reader)
    changes = reader.changes()
    outcomes = {
        name: _stop(reader.record, table)
        or _reread(reader.record, table, first_gsn)
        or _outcome(
            running,
            case,
            (table[0], case.shown_by or table[1]),
            changes[table],
            first_gsn,
            code,
            _sent(reader.record, table),
        )
        for table, name in case.tables.items()
    }
    if case.is_setting:
        findings.types[case.name] = outcomes
        running.run(*(f"DELETE FROM {table}" for _, table in case.tables), database=case.database)
        return not code and set(outcomes.values()) == {DECODED}
    findings.flows |= outcomes
    return not code


def _execute(running: Server, reader: _Reader, *statements: str, database: str) -> None:
    """On one connection, but for what `flows` has in the place of statements."""
    connection = running.connect(database=database)
    try:
        for statement in statements:
            if statement in (RECONNECT, RESTART):
                connection.close()
                if statement == RESTART:
                    running.stop()
                    running.start()
                connection = running.connect(database=database)
            elif statement == CATCH_UP:
                _wait_until_read(running, reader)
            elif statement.startswith(FAILS):
                with pytest.raises(pymysql.err.MySQLError):
                    connection.query(statement.removeprefix(FAILS))
            else:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
    finally:
        connection.close()


def _types_in(data: bytes) -> set[int]:
    """Types of the real events of a log file; those that the server makes up for a replica have no place in it."""
    return {
        payload[5]
        for payload in payloads(data)
        if payload[:1] == b"\0" and not int.from_bytes(payload[18:20], "little") & constants.LOG_EVENT_ARTIFICIAL_F
    }


def _wait_until_read(running: Server, reader: _Reader) -> str:
    """The code of the error that stopped the source or all of its tables, or '': the last row has come."""
    running.run("INSERT INTO flows.sentinel VALUES (NULL)")
    last = running.run("SELECT MAX(id) FROM flows.sentinel")[0][0]
    record = reader.record

    def code() -> str:
        of_source = [str(error.error.code) for error in record.errors if error.error.terminal]
        return (of_source or [_stop(record, SENTINEL)])[0]

    def is_over() -> bool:
        newest = next((batch for batch in reversed(record.batches) if batch.table == SENTINEL), None)
        return bool(code()) or (newest is not None and newest.rows["id"][-1].as_py() == last)

    reader.gateway.wait(is_over, WAIT_SECONDS)
    return code()


def _stop(record: SourceRecord, table: Table) -> str:
    """The code of the error that stopped the table, or ''."""
    for cut in record.committed:
        for stop in cut.stopped:
            if (stop.table.database, stop.table.table) == table:
                return str(stop.error.code)
    return ""


def _reread(record: SourceRecord, table: Table, first_gsn: int) -> str:
    """Whether an event of the case orders a dump of the table, or ''."""
    ordered = [
        (event.table.database, event.table.table)
        for cut in record.committed
        for event in cut.events
        if event.reread and event.gsn > first_gsn
    ]
    return REREAD if table in ordered else ""


def _sent(record: SourceRecord, table: Table) -> set[str]:
    """The columns that are sent, where the newest event says that others are generated and unlogged; else empty."""
    sent: set[str] = set()
    for cut in record.committed:
        for event in cut.events:
            if (event.table.database, event.table.table) == table:
                is_about_unlogged = event.statement == UNLOGGED_COLUMNS
                sent = {column.name for column in event.columns} if is_about_unlogged else set()
    return sent


def _outcome(
    running: Server,
    case: _Case,
    table: Table,
    changes: list[dict[str, Any]],
    first_gsn: int,
    source_code: str,
    sent: set[str],
) -> str:
    columns, _ = read_source(running, *table)
    unsent = {column.name for column in columns if sent and column.name not in sent}
    columns, rows = read_source(running, *table, unsent)
    names = {column.name: column.name for column in columns}
    comparison = compare(".".join(table), columns, rows, put_together(changes, list(names), case.key), names)
    if comparison.equal and changes and changes[-1][GSN] > first_gsn:
        return NOT_SENT if unsent else DECODED
    if source_code:
        return source_code
    print(f"{case.name}: {comparison}; changes: {Counter(row['_change_type'] for row in changes)}", file=sys.stderr)
    return WRONG
