"""A table's rows through the reader of result sets, to compare with what the log makes of them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from operator import itemgetter

import pyarrow as pa
import pymysql
from menura.change_batch import METADATA_DEFAULT, METADATA_ROW_END

from agent.config_entries import Secret
from agent.filter import Filter, Policy
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.ddl.model import Server as DefinitionServer
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.server.information_schema import read_definitions
from agent.sources.mysql.snapshot.results import ReadResult, RowsPlan, plan_for, read_rows
from agent.sources.mysql.snapshot.statements import prepare, unchunked_statement
from tests.agent.native.capture import current_state
from tests.servers import Server

DATABASE = "t"


def source_config(server: Server, table: str = "", ignored: Iterable[str] = ()) -> MysqlConfig:
    at = ServerConfig(server.host, server.user, server.port, Secret(server.password))
    rules = {table: tuple(ignored)} if table else {}
    return MysqlConfig(
        name="shop", kind="mysql", client=at, binlog=at, filter=Filter(Policy.ACCEPT, rules, identifiers=IDENTIFIERS)
    )


def definition_of(server: Server, table: str) -> TableDefinition:
    with closing(connect(source_config(server).client, "shop")) as connection:
        asked = DefinitionServer(server.flavor == "mariadb", (0, 0, 0))
        found = read_definitions(connection, [(DATABASE, table)], asked)[(DATABASE, table)]
    assert isinstance(found, TableDefinition), found
    return found


def plan_of_table(
    server: Server,
    table: str,
    definition: TableDefinition | None = None,
    *,
    ignored: Iterable[str] = (),
    key_columns: int = 0,
) -> RowsPlan:
    return plan_for(
        source_config(server, table if ignored else "", ignored),
        (DATABASE, table),
        definition or definition_of(server, table),
        mariadb=server.flavor == "mariadb",
        key_columns=key_columns,
    )


def session(server: Server, **options: object) -> pymysql.connections.Connection:
    """A connection as a dump has it."""
    connection = server.connect(**options)
    prepare(connection, facts_of(connection, "shop"))
    return connection


def read(
    connection: pymysql.connections.Connection,
    plan: RowsPlan,
    statement: str = "",
    *,
    batch_rows: int = 1000,
    received: Callable[[int], None] = lambda size: None,
) -> tuple[list[pa.RecordBatch], ReadResult]:
    reading = read_rows(
        connection, statement or unchunked_statement(plan.table, plan.expressions), plan, batch_rows, received
    )
    batches = [pa.record_batch(rows.columns) for rows in reading]
    for batch in batches:
        batch.validate(full=True)
    return batches, reading.result


def selected(server: Server, table: str, definition: TableDefinition | None = None) -> pa.Table:
    """Every row of a table, by SELECT."""
    plan = plan_of_table(server, table, definition)
    with closing(session(server)) as connection:
        batches, result = read(connection, plan)
    assert result.rows == sum(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches)


def assert_select_gives_the_same(
    server: Server, changes: pa.Table, table: str, definition: TableDefinition | None = None, key: str = "id"
) -> None:
    """One value has one form: the rows that the changes of the log leave are those that the reader selects.

    By the table's definition in information_schema, if no other is given.
    """
    rows = selected(server, table, definition)
    for name in rows.column_names:
        ours, theirs = _told(rows.schema.field(name)), _told(changes.schema.field(name))
        assert ours == theirs, (ours, theirs)
    left = sorted((_words(row, rows.column_names) for row in current_state(changes, key)), key=itemgetter(key))
    found = sorted((_words(row, rows.column_names) for row in rows.to_pylist()), key=itemgetter(key))
    assert found == left, [(ours, theirs) for ours, theirs in zip(found, left, strict=False) if ours != theirs][:1]


def _told(field: pa.Field) -> tuple[object, ...]:
    metadata = {} if field.metadata is None else dict(field.metadata)
    for told_by_definition in (METADATA_DEFAULT, METADATA_ROW_END):  # which the log alone does not tell
        metadata.pop(told_by_definition.encode(), None)
    return field.name, field.type, field.nullable, metadata


def _words(row: Mapping[str, object], names: Iterable[str]) -> dict[str, str]:
    """Every bit is seen in it: -0.0 is not 0.0."""
    return {name: repr(row[name]) for name in names}
