"""A table's rows through the reader of result sets, to compare with what the log makes of them."""

from collections.abc import Callable, Iterable
from contextlib import closing

import pyarrow as pa
import pymysql

from agent.config import Secret, ServerConfig, SourceConfig
from agent.filter import Filter, Policy
from agent.mysql.connection import facts_of
from agent.mysql.ddl.model import Server as DefinitionServer
from agent.mysql.ddl.model import TableDefinition
from agent.mysql.dump.results import ReadResult, RowsPlan, plan_for, read_rows
from agent.mysql.dump.statements import prepare, whole_statement
from agent.mysql.information_schema import read_definitions
from tests.servers import Server

DATABASE = "t"


def source_config(server: Server, table: str = "", ignored: Iterable[str] = ()) -> SourceConfig:
    at = ServerConfig(server.host, server.user, server.port, Secret(server.password))
    rules = {table: tuple(ignored)} if table else {}
    return SourceConfig("shop", at, at, 0, Filter(Policy.ACCEPT, rules))


def definition_of(server: Server, table: str, database: str = DATABASE) -> TableDefinition:
    with closing(server.connect()) as connection:
        asked = DefinitionServer(server.flavor == "mariadb", (0, 0, 0))
        found = read_definitions(connection, [(database, table)], asked)[(database, table)]
    assert isinstance(found, TableDefinition), found
    return found


def plan_of_table(
    server: Server, table: str, *, database: str = DATABASE, ignored: Iterable[str] = (), key_columns: int = 0
) -> RowsPlan:
    return plan_for(
        source_config(server, table if ignored else "", ignored),
        (database, table),
        definition_of(server, table, database),
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
        connection, statement or whole_statement(plan.table, plan.expressions), plan, batch_rows, received
    )
    batches = [pa.record_batch(rows.columns) for rows in reading]
    for batch in batches:
        batch.validate(full=True)
    return batches, reading.result


def selected(server: Server, table: str, *, order_by: str = "", **options: object) -> pa.Table:
    """Every row of a table, by SELECT."""
    plan = plan_of_table(server, table, **options)
    statement = whole_statement(plan.table, plan.expressions) + (f" ORDER BY {order_by}" if order_by else "")
    with closing(session(server)) as connection:
        batches, result = read(connection, plan, statement)
    assert result.rows == sum(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches) if batches else pa.table({})
