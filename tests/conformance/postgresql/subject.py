"""A running PostgreSQL on which cases are run: its connections, its log's messages, its rows beside the agent's.

What a look at the catalog finds, no message tells. So after each case one sentinel gets a column that only a look can
find, and then the other one a column and a row, which has the agent look soon. A look shows all tables at one moment,
but for those that the agent has asked for meanwhile, which the next look decides: so all that is done twice.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from agent.sources.postgresql.columns import distinct_names
from tests.agent.gateway_double import SourceRecord, Table
from tests.agent.postgresql.sources import entries, login
from tests.compare import Comparison
from tests.conformance.flows import parts
from tests.conformance.postgresql import cases
from tests.conformance.rows import put_together
from tests.conformance.run import Findings, examine, of_flows, of_settings
from tests.conformance.subject import Case
from tests.e2e import postgresql_types
from tests.e2e.postgresql_lake import DATABASE, SCHEMA, compared, read_source
from tests.live_source import PostgresqlSource, postgresql_source

#: of a release; settings have one more
FLOW_SERVERS = 3
#: a slot beside the agent's, from which the messages of a case are read
_WITNESS = "witness"
_READ = f"""
    SELECT DISTINCT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes('{_WITNESS}', NULL, NULL,
        'proto_version', '1', 'publication_names', '{_WITNESS}', 'messages', 'true')
"""


@dataclass(frozen=True)
class _Part:
    """What one server of a release is asked."""

    settings: Sequence[cases.Setting]
    flows: Sequence[cases.Flow]


class PostgresqlSubject:
    sentinels: tuple[Table, ...] = ((SCHEMA, "sentinel"), (SCHEMA, "quiet"))
    marks = 2
    errors = psycopg.Error

    def __init__(self, source: PostgresqlSource) -> None:
        self._source = source
        self._server = source.server
        self._number = 0

    def entries(self) -> dict[str, object]:
        return {"kind": "postgresql", "client": entries(login(self._server))}

    def run(self, *statements: str, database: str) -> list[tuple[object, ...]]:
        """As the administrator."""
        return self._server.run(*statements, database=DATABASE)

    def connect(self, database: str) -> Any:
        return self._source.connect(prepare_threshold=None)

    def leave(self, connection: Any) -> None:
        connection.close()  # a prepared transaction belongs to nobody

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def begin(self, case: Case) -> None:
        self.run(*case.before, _READ, database=DATABASE)

    def logged(self) -> set[str]:
        return {str(kind) for (kind,) in self.run(_READ, database=DATABASE)}

    def mark(self) -> Callable[[SourceRecord], bool]:
        self._number += 1
        name, former = f"of_{self._number}", f"of_{self._number - 1}"
        self._source.run(
            f"ALTER TABLE quiet DROP IF EXISTS {former}, ADD {name} int",
            f"ALTER TABLE sentinel DROP IF EXISTS {former}, ADD {name} int",
            "INSERT INTO sentinel DEFAULT VALUES",
        )

        def is_there(record: SourceRecord) -> bool:
            events = [event for cut in reversed(record.committed) for event in cut.events]
            of_quiet = [one for one in events if (one.table.database, one.table.table) == self.sentinels[1]]
            return any(column.name == name for event in of_quiet for column in event.columns)

        return is_there

    def compare(
        self, table: Table, changes: Sequence[Mapping[str, Any]], key: Sequence[str], sent: set[str]
    ) -> tuple[Comparison, bool]:
        columns, rows = read_source(self._server, table[1], table[0])
        names = distinct_names([column.name for column in columns])
        found = put_together(changes, names, key)
        return compared(".".join(table), columns, rows, found, {name: name for name in names}), False


def examine_all(folder: Path) -> dict[str, Findings]:
    """Every release, its cases on several servers side by side: each mostly waits for its server's looks."""
    parts_of_all = {platform.name: _parts(platform) for platform in cases.PLATFORMS}
    with ThreadPoolExecutor(sum(map(len, parts_of_all.values()))) as pool:
        running = {
            platform.name: [
                pool.submit(_examine, platform, part, folder / f"{platform.version}-{number}")
                for number, part in enumerate(parts_of_all[platform.name])
            ]
            for platform in cases.PLATFORMS
        }
        return {name: _together([part.result() for part in of]) for name, of in running.items()}


def _parts(platform: cases.Release) -> list[_Part]:
    flows = cases.flows_of(platform)
    return [_Part(cases.SETTINGS, ()), *(_Part((), flows[number::FLOW_SERVERS]) for number in range(FLOW_SERVERS))]


def _together(parts: Sequence[Findings]) -> Findings:
    found = Findings()
    for part in parts:
        found.types |= part.types
        found.flows |= part.flows
        for event, of in part.events.items():
            found.events.setdefault(event, []).extend(of)
    return found


def _examine(platform: cases.Release, part: _Part, folder: Path) -> Findings:
    folder.mkdir(parents=True)
    settings = {"max_prepared_transactions": "20", "max_wal_size": "4GB"}
    findings, types = Findings(), cases.types_of(platform) if part.settings else []
    with postgresql_source(platform.version, **settings) as source:
        create(source, types, part.flows, folder)
        statements = [
            [*setting.session, *(text for n, type_ in enumerate(types) for text in cases.rows_of(f"t{n}", type_))]
            for setting in part.settings
        ]
        work = [
            *of_settings(types, part.settings, [SCHEMA] * len(part.settings), statements),
            *of_flows(part.flows, SCHEMA, folder),
        ]
        examine(PostgresqlSubject(source), work, folder, findings)
    return findings


def create(source: PostgresqlSource, types: Sequence[cases.Type], flows: Sequence[cases.Flow], folder: Path) -> None:
    named = parts(folder) | {"many_columns": ", ".join(f"c{number} smallint" for number in range(1, 999))}
    made = [text.format(t=f"f{number}", **named) for number, flow in enumerate(flows) for text in flow.made]
    source.run(
        *postgresql_types.TYPES,
        *(cases.table_of(f"t{n}", type_) for n, type_ in enumerate(types)),
        *made,
        *(
            f"CREATE TABLE {name} (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)"
            for _, name in PostgresqlSubject.sentinels
        ),
    )
    logged = source.run("SELECT relname FROM pg_class WHERE relname ~ '^[tf][0-9]+$' AND relpersistence = 'p'")
    tables = [str(name) for (name,) in logged]
    source.server.run(
        f"CREATE PUBLICATION {_WITNESS} FOR TABLE ONLY {', ONLY '.join(tables)}"
        " WITH (publish_via_partition_root = true)",
        f"SELECT pg_create_logical_replication_slot('{_WITNESS}', 'pgoutput')",
        database=DATABASE,
    )
