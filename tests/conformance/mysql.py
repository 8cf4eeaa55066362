"""A running MySQL or MariaDB on which cases are run: its connections, its log's events, its rows beside the agent's."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql

from agent.errors import SourceConnectionLost
from agent.sources.mysql.log import constants
from agent.sources.mysql.server.server_log import FIRST_OFFSET
from tests.agent.gateway_double import SourceRecord, Table
from tests.agent.native.capture import dump, heartbeats
from tests.agent.native.mutation import payloads
from tests.agent.running import client
from tests.agent.test_rare_events import read
from tests.compare import Comparison, compare, read_source
from tests.conformance import cases
from tests.conformance.flows import Flow
from tests.conformance.rows import put_together
from tests.conformance.run import NO_ROW, Findings, examine, of_flows, of_settings
from tests.conformance.subject import Case
from tests.servers import Server

_NAMES = {
    number: name
    for name, number in vars(constants).items()
    if name.isupper() and ("_EVENT" in name) and isinstance(number, int) and not name.startswith("LOG_EVENT")
}


def name_of(number: int) -> str:
    return _NAMES.get(number, f"type {number}")


class MysqlSubject:
    sentinels: tuple[Table, ...] = (("flows", "sentinel"),)
    marks = 1
    errors = pymysql.err.MySQLError

    def __init__(self, running: Server) -> None:
        self._running = running
        self._first_file = ""

    def entries(self) -> dict[str, object]:
        return {"client": client(self._running)}

    def run(self, *statements: str, database: str) -> list[tuple[object, ...]]:
        return self._running.run(*statements, database=database)

    def connect(self, database: str) -> Any:
        return self._running.connect(database=database)

    def leave(self, connection: Any) -> None:
        self._running.leave(connection)

    def restart(self) -> None:
        self._running.stop()
        self._running.start()

    def begin(self, case: Case) -> None:
        self._running.run(*case.before, "FLUSH BINARY LOGS")
        self._first_file = self._files()[-1]

    def logged(self) -> set[str]:
        files = [name for name in self._files() if name >= self._first_file]
        return {name_of(kind) for file in files for kind in _types_in(dump(self._running, file, annotated=True))}

    def _files(self) -> list[str]:
        return [str(name) for name, *_ in self._running.run("SHOW BINARY LOGS")]

    def mark(self) -> Callable[[SourceRecord], bool]:
        self._running.run("INSERT INTO flows.sentinel VALUES (NULL)")
        last = self._running.run("SELECT MAX(id) FROM flows.sentinel")[0][0]

        def is_there(record: SourceRecord) -> bool:
            newest = next((batch for batch in reversed(record.batches) if batch.table in self.sentinels), None)
            return newest is not None and newest.rows["id"][-1].as_py() == last

        return is_there

    def compare(
        self, table: Table, changes: Sequence[Mapping[str, Any]], key: Sequence[str], sent: set[str]
    ) -> tuple[Comparison, bool]:
        columns, _ = read_source(self._running, *table)
        unsent = {column.name for column in columns if sent and column.name not in sent}
        columns, rows = read_source(self._running, *table, unsent)
        names = {column.name: column.name for column in columns}
        return compare(".".join(table), columns, rows, put_together(changes, list(names), key), names), bool(unsent)


def examine_mysql(
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
    statements = [[*cases.SESSION, *setting.session, *_rows(types, setting)] for setting in settings]
    databases = [_database(settings, number) for number, _ in enumerate(settings)]
    work = [*of_settings(types, settings, databases, statements), *of_flows(flows, "flows", folder)]
    examine(MysqlSubject(running), work, folder, findings)
    return findings


def _rows(types: Sequence[cases.Type], setting: cases.Setting) -> list[str]:
    return [
        statement
        for n, type_ in enumerate(types)
        for statement in cases.rows_of(f"t{n}", type_, keeps_keys=setting.keeps_keys)
    ]


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


def _types_in(data: bytes) -> set[int]:
    """Types of the real events of a log file; those that the server makes up for a replica have no place in it."""
    return {
        payload[5]
        for payload in payloads(data)
        if payload[:1] == b"\0" and not int.from_bytes(payload[18:20], "little") & constants.LOG_EVENT_ARTIFICIAL_F
    }
