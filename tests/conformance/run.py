"""Every case on a real server, read by a real agent: what was decoded, what stopped, and which events the log held.

Comes in: a server as a `Subject`, and `Case`s. Goes out: `Findings`. The agent is a process of its own, which sends to
a gateway double; what it sent is put together to the table's rows and compared with a SELECT. Rows that differ are a
defect, and named as one.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from menura.change_batch import CHANGE_TYPE, GSN

from agent.sources.mysql.stream.table_router import UNLOGGED_COLUMNS
from tests.agent.gateway_double import GatewayDouble, SourceRecord, Table
from tests.agent.running import running_agent, write_config
from tests.conformance import cases
from tests.conformance.flows import CATCH_UP, FAILS, RECONNECT, RESTART, Flow, parts
from tests.conformance.rows import ALTERS_COLUMNS, COLUMNS, REMOVES_ROWS
from tests.conformance.subject import Case, Subject

DECODED = "decoded"
#: rows changed unlogged: the table goes on, and an event orders a dump that brings them
REREAD = "re-read"
#: as decoded, but for generated columns whose values the log lacks: they are not sent, and an event says so
NOT_SENT = "not sent"
#: rows that differ from the server's: a defect
WRONG = "WRONG"
NO_ROW = "holds no row"
SOURCE = "conformance"
#: in the name of a case whose rows are logged as statements
LOGGED_STATEMENT = "statement-based"
WAIT_SECONDS = 600.0


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

    def saw(self, case: str, names: set[str]) -> None:
        for name in names:
            self.events.setdefault(name, []).append(case)

    def outcome(self, event: str) -> str:
        """Of the cases in whose log the event was: decoded, or why every one of them stopped; '' if it was in none."""
        outcomes = [
            outcome
            for case in self.events.get(event, ())
            for outcome in (self.types.get(case) or {case: self.flows[case]}).values()
        ]
        return DECODED if DECODED in outcomes else next(iter(outcomes), "")


@dataclass
class _Reader:
    """The agent that reads now; a new one after the source has stopped."""

    record: SourceRecord
    gateway: GatewayDouble

    def last_gsn(self) -> int:
        return max((batch.raw.last_gsn for batch in self.record.batches), default=0)

    def changes(self) -> dict[Table, list[dict[str, Any]]]:
        """Of each table in the order of their numbers, with TRUNCATE and ALTER."""
        found: dict[Table, list[dict[str, Any]]] = defaultdict(list)
        for batch in self.record.batches:
            found[batch.table] += batch.rows.to_pylist()
        for cut in self.record.committed:
            for event in cut.events:
                of_table = found[event.table.database, event.table.table]
                if event.removes_rows:
                    of_table.append({GSN: event.gsn, CHANGE_TYPE: REMOVES_ROWS})
                elif event.kind == event.ALTERED and event.columns:
                    of_table.append({GSN: event.gsn, CHANGE_TYPE: ALTERS_COLUMNS, COLUMNS: event.columns})
        for rows in found.values():
            rows.sort(key=lambda change: change[GSN])
        return found


def examine(subject: Subject, work: list[Case], folder: Path, findings: Findings) -> None:
    """Cases one by one on a running server, each by the agent of the one before unless that has stopped."""
    while work:
        tables = list(dict.fromkeys(table for case in work for table in case.tables))
        with _reading(subject, tables, folder) as reader:
            while work and _examine(subject, reader, work.pop(0), findings):
                pass


def of_settings(
    types: Sequence[cases.Type],
    settings: Sequence[cases.Setting],
    databases: Sequence[str],
    statements: Sequence[Sequence[str]],
) -> Iterator[Case]:
    """`databases` and `statements`: of each setting."""
    for setting, database, of_setting in zip(settings, databases, statements, strict=True):
        names = {(database, f"t{n}"): type_.name for n, type_ in enumerate(types)}
        yield Case(setting.name, database, names, setting.on, tuple(of_setting), setting.off, is_setting=True)


def of_flows(flows: Sequence[Flow], database: str, folder: Path) -> Iterator[Case]:
    named = parts(folder)
    for number, flow in enumerate(flows):
        table = f"f{number}"
        statements = tuple(statement.format(t=table, **named) for statement in flow.statements)
        shown_by = flow.shown_by.format(t=table)
        names = {(database, table): flow.name}
        on = tuple(statement.format(t=table) for statement in flow.on)
        off = tuple(statement.format(t=table) for statement in flow.off)
        yield Case(flow.name, database, names, on, statements, off, False, shown_by, flow.key)


@contextmanager
def _reading(subject: Subject, tables: list[Table], folder: Path) -> Iterator[_Reader]:
    """An agent that reads these tables from now on, and the sentinel."""
    gateway = GatewayDouble()
    gateway.sync(SOURCE, *dict.fromkeys((*tables, *subject.sentinels)), now=True)
    config = write_config(folder, gateway.address, {SOURCE: subject.entries()})
    codes = range(20, 60)  # of an agent that is told to stop while its only source has failed
    try:
        with running_agent(config, folder / "agent.log", 0, *codes):
            record = gateway.source(SOURCE)
            gateway.wait(lambda: record.committed or any(said.error.terminal for said in record.errors), WAIT_SECONDS)
            assert record.committed, [error.error.found for error in record.errors]
            yield _Reader(record, gateway)
    finally:
        gateway.stop()


def _examine(subject: Subject, reader: _Reader, case: Case, findings: Findings) -> bool:
    """Run a case and wait until the agent has read it; False: a new agent has to read the next one."""
    subject.begin(case)
    first_gsn = reader.last_gsn()
    _execute(subject, reader, *case.statements, database=case.database)
    findings.saw(case.name, subject.logged())
    if case.after:
        subject.run(*case.after, database=case.database)
    code = _wait_until_read(subject, reader)
    changes = reader.changes()
    outcomes = {
        name: _stop(reader.record, table)
        or _reread(reader.record, table, first_gsn)
        or _outcome(
            subject,
            case,
            (table[0], case.shown_by or table[1]),
            changes[table],
            first_gsn,
            code,
            _sent(reader.record, table),
        )
        for table, name in case.tables.items()
    }
    if LOGGED_STATEMENT in case.name:
        # The first such statement's event is of all tables, and says enough for as long as no dump of them has begun.
        told = {name for table, name in case.tables.items() if _reread(reader.record, table, 0)}
        outcomes = {name: REREAD if found == WRONG and name in told else found for name, found in outcomes.items()}
    if case.is_setting:
        findings.types[case.name] = outcomes
        subject.run(*(f"DELETE FROM {table}" for _, table in case.tables), database=case.database)
        return not code and set(outcomes.values()) == {DECODED}
    findings.flows |= outcomes
    return not code


def _execute(subject: Subject, reader: _Reader, *statements: str, database: str) -> None:
    """On one connection, but for what `flows` has in the place of statements."""
    connection = subject.connect(database)
    try:
        for statement in statements:
            if statement in (RECONNECT, RESTART):
                subject.leave(connection)
                if statement == RESTART:
                    subject.restart()
                connection = subject.connect(database)
            elif statement == CATCH_UP:
                _wait_until_read(subject, reader)
            elif statement.startswith(FAILS):
                with pytest.raises(subject.errors):
                    connection.cursor().execute(statement.removeprefix(FAILS))
            else:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
    finally:
        connection.close()


def _wait_until_read(subject: Subject, reader: _Reader) -> str:
    """The code of the error that stopped the source or all of its tables, or '': all has come."""
    record = reader.record

    def code() -> str:
        of_source = [str(error.error.code) for error in record.errors if error.error.terminal]
        return (of_source or [_stop(record, subject.sentinels[0])])[0]

    for _ in range(subject.marks):
        is_there = subject.mark()
        reader.gateway.wait(lambda is_there=is_there: bool(code()) or is_there(record), WAIT_SECONDS)
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
    subject: Subject,
    case: Case,
    table: Table,
    changes: list[dict[str, Any]],
    first_gsn: int,
    source_code: str,
    sent: set[str],
) -> str:
    comparison, is_partial = subject.compare(table, changes, case.key, sent)
    if comparison.equal and changes and changes[-1][GSN] > first_gsn:
        return NOT_SENT if is_partial else DECODED
    if source_code:
        return source_code
    print(f"{case.name}: {comparison}; changes: {Counter(row['_change_type'] for row in changes)}", file=sys.stderr)
    return WRONG
