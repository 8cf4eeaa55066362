"""Every case on a real server, read by a real agent: what was decoded, what stopped, and which events the log held.

Comes in: `cases`. Goes out: `Findings`. The agent is a process of its own, which sends to a gateway double; what it
sent is put together to the table's rows and compared with a SELECT. Rows that differ are a defect, and named as one.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from menura.change_batch import CHANGE_TYPE, GSN

from agent.mysql.log import constants
from tests.agent.gateway_double import GatewayDouble, SourceRecord, Table
from tests.agent.native.capture import dump
from tests.agent.native.mutation import payloads
from tests.agent.running import client, running_agent, write_config
from tests.compare import compare, read_source
from tests.conformance import cases
from tests.conformance.rows import REMOVES_ROWS, put_together
from tests.servers import Server

DECODED = "decoded"
#: rows that differ from the server's: a defect
WRONG = "WRONG"
SOURCE = "conformance"
WAIT_SECONDS = 90.0
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

    def saw(self, case: str, types: set[int]) -> None:
        for number in types:
            self.events.setdefault(_NAMES.get(number, f"type {number}"), []).append(case)


@dataclass
class _Reader:
    """The agent that reads now; a new one after the source has stopped."""

    record: SourceRecord
    gateway: GatewayDouble


def examine(
    running: Server,
    folder: Path,
    types: Sequence[cases.Type],
    settings: Sequence[cases.Setting],
    flows: Sequence[cases.Flow],
) -> Findings:
    """Settings, with every type, and flows on one running server."""
    findings = Findings()
    running.create_replication_user()
    (folder / "rows.txt").write_text("8\teight\n")
    (folder / "rows.txt").chmod(0o644)
    folder.chmod(0o755)
    tables = [*_create_types(running, types, settings), *_create_flows(running, flows)]
    work = list(_work(types, settings, flows, folder))
    while work:
        left = {table for case in work for table in case.tables}
        with _reading(running, [table for table in tables if table in left], folder) as reader:
            while work:
                if not _examine(running, reader, work.pop(0), findings):
                    break
    return findings


@dataclass(frozen=True)
class _Case:
    name: str
    tables: dict[Table, str]
    before: tuple[str, ...]
    statements: tuple[str, ...]
    after: tuple[str, ...]
    is_setting: bool


def _create_types(running: Server, types: Sequence[cases.Type], settings: Sequence[cases.Setting]) -> Iterator[Table]:
    for number, setting in enumerate(settings):
        running.run(*setting.on, f"CREATE DATABASE s{number} CHARACTER SET utf8mb4")
        of_types = [(f"t{n}", type_) for n, type_ in enumerate(types)]
        running.run(*(cases.table_of(table, type_) for table, type_ in of_types), database=f"s{number}")
        if setting.off:
            running.run(*setting.off)
        yield from ((f"s{number}", table) for table, _ in of_types)


def _create_flows(running: Server, flows: Sequence[cases.Flow]) -> Iterator[Table]:
    running.run("CREATE DATABASE flows CHARACTER SET utf8mb4")
    names = [f"f{number}" for number, _ in enumerate(flows)]
    if names:
        running.run(
            *(f"CREATE TABLE {name} (id INT PRIMARY KEY, note VARCHAR(40))" for name in names), database="flows"
        )
    running.run("CREATE TABLE flows.sentinel (id INT AUTO_INCREMENT PRIMARY KEY)")
    yield from (("flows", name) for name in names)
    yield SENTINEL


def _work(
    types: Sequence[cases.Type], settings: Sequence[cases.Setting], flows: Sequence[cases.Flow], folder: Path
) -> Iterator[_Case]:
    for number, setting in enumerate(settings):
        of_types = {(f"s{number}", f"t{n}"): type_ for n, type_ in enumerate(types)}
        statements = [*cases.SESSION, *setting.session]
        for (_, table), type_ in of_types.items():
            statements += cases.rows_of(table, type_, keeps_keys=setting.keeps_keys)
        names = {table: type_.name for table, type_ in of_types.items()}
        yield _Case(setting.name, names, setting.on, (f"USE s{number}", *statements), setting.off, is_setting=True)
    for number, flow in enumerate(flows):
        statements = [statement.format(t=f"f{number}", file=folder / "rows.txt") for statement in flow.statements]
        yield _Case(
            flow.name, {("flows", f"f{number}"): flow.name}, (), ("USE flows", *statements), (), is_setting=False
        )


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
            gateway.wait(lambda: record.committed or record.errors, WAIT_SECONDS)
            assert record.committed, [error.error.found for error in record.errors]
            yield _Reader(record, gateway)
    finally:
        gateway.stop()


def _examine(running: Server, reader: _Reader, case: _Case, findings: Findings) -> bool:
    """Run a case and wait until the agent has read it; False: the source has stopped."""
    running.run(*case.before, "FLUSH BINARY LOGS")
    first = str(running.run("SHOW BINARY LOGS")[-1][0])
    running.run(*case.statements)
    files = [str(name) for name, *_ in running.run("SHOW BINARY LOGS") if str(name) >= first]
    findings.saw(case.name, {kind for file in files for kind in _types_in(dump(running, file, annotated=True))})
    if case.after:
        running.run(*case.after)
    code = _wait_until_read(running, reader)
    outcomes = {
        name: _outcome(running, reader, f"{case.name}, {name}", table, code) for table, name in case.tables.items()
    }
    if case.is_setting:
        findings.types[case.name] = outcomes
    else:
        findings.flows |= outcomes
    return not code


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
        return (of_source or _stops(record, SENTINEL) or [""])[0]

    def is_over() -> bool:
        return bool(code()) or any(row["id"] == last for row in reader.gateway.rows(SOURCE, SENTINEL)[-1:])

    reader.gateway.wait(is_over, WAIT_SECONDS)
    return code()


def _stops(record: SourceRecord, table: Table) -> list[str]:
    return [
        str(stop.error.code)
        for cut in record.committed
        for stop in cut.stopped
        if (stop.table.database, stop.table.table) == table
    ]


def _removals(record: SourceRecord, table: Table) -> list[dict[str, object]]:
    """Where all rows went at once, as changes: TRUNCATE."""
    return [
        {GSN: event.gsn, CHANGE_TYPE: REMOVES_ROWS}
        for cut in record.committed
        for event in cut.events
        if event.removes_rows and (event.table.database, event.table.table) == table
    ]


def _outcome(running: Server, reader: _Reader, what: str, table: Table, source_code: str) -> str:
    stopped = _stops(reader.record, table)
    if stopped:
        return stopped[0]
    columns, rows = read_source(running, *table)
    changes = [*reader.gateway.rows(SOURCE, table), *_removals(reader.record, table)]
    changes.sort(key=lambda change: change[GSN])
    names = {column.name: column.name for column in columns}
    comparison = compare(".".join(table), columns, rows, put_together(changes, list(names)), names)
    if comparison.equal and changes:
        return DECODED
    if source_code:
        return source_code
    print(f"{what}: {comparison}; changes: {Counter(row['_change_type'] for row in changes)}", file=sys.stderr)
    return WRONG
