"""The reader of result sets on real servers: shapes, ends, errors. Its values are compared where the log's are."""

import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
import pytest
from menura.change_batch import Compression
from pymysql.constants import CLIENT

from agent.columnar.encode import encode_snapshot
from agent.errors import DefinitionMoved, SourceFailed
from agent.sources.mysql.columns import schema_id
from agent.sources.mysql.schema.table_planner import columns_of
from agent.sources.mysql.snapshot.results import plan_for, read_rows
from agent.sources.mysql.snapshot.statements import unchunked_statement
from tests.agent.native.capture import decode_all, definitions, logged
from tests.agent.native.selection import (
    assert_select_gives_the_same,
    definition_of,
    plan_of_table,
    read,
    selected,
    session,
    source_config,
)
from tests.agent.wire import read_table
from tests.servers import Server


def test_empty_table_gives_no_rows(source: Server) -> None:
    source.run("DROP TABLE IF EXISTS no_rows", "CREATE TABLE no_rows (id INT PRIMARY KEY, v VARCHAR(9))", database="t")
    plan = plan_of_table(source, "no_rows", key_columns=1)
    statement = unchunked_statement(plan.table, [*plan.expressions, "CAST(id AS CHAR)"])

    with closing(session(source)) as connection:
        batches, result = read(connection, plan, statement)

    assert (batches, result.rows, result.last_row) == ([], 0, ())
    assert result.source_bytes > 0


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_bounds_are_those_of_the_last_row_however_rows_are_batched(source: Server, batch_rows: int) -> None:
    source.run(
        "DROP TABLE IF EXISTS bounds",
        "CREATE TABLE bounds (id INT PRIMARY KEY, b VARBINARY(300), n INT)",
        "INSERT INTO bounds VALUES (1, 'x', 1), (2, REPEAT('y', 300), NULL), (3, '', NULL)",
        *["INSERT INTO bounds SELECT id + (SELECT MAX(id) FROM bounds), b, n FROM bounds"] * 3,
        database="t",
    )
    plan = plan_of_table(source, "bounds", key_columns=3)
    texts = ["CAST(id AS CHAR)", "HEX(b)", "CAST(n AS CHAR)"]
    statement = unchunked_statement(plan.table, [*plan.expressions, *texts])
    last_rows = []

    with closing(session(source)) as connection:
        for where in ("id <= 24", "id = 23", "id = 22"):
            batches, result = read(connection, plan, f"{statement} WHERE {where} ORDER BY id", batch_rows=batch_rows)
            last_rows.append(result.last_row)
            assert all(batch.num_rows <= batch_rows for batch in batches)
            assert all(batch.num_columns == 4 for batch in batches)
            assert sum(batch.num_rows for batch in batches) == result.rows

    assert last_rows == [(b"24", b"", None), (b"23", b"79" * 300, None), (b"22", b"78", b"1")]


#: of a row of one packet less than the largest: 0x00, null bitmap, id, length, value
FULL_PACKET = 0xFFFFFF - 10
SIZES = (FULL_PACKET - 1, FULL_PACKET, FULL_PACKET + 1, 2 * 0xFFFFFF - 10, 64 << 20)


def test_values_of_several_packets_are_whole(source: Server) -> None:
    """A packet of the largest size is followed by another one, which may be empty."""
    source.run(
        "SET sql_log_bin = 0",
        "DROP TABLE IF EXISTS large",
        "CREATE TABLE large (id INT PRIMARY KEY, b LONGBLOB) ENGINE=MyISAM",
        *[f"INSERT INTO large VALUES ({size}, REPEAT('x', {size}))" for size in (1, *SIZES)],
        database="t",
    )
    plan = plan_of_table(source, "large")
    statement = unchunked_statement(plan.table, plan.expressions) + " ORDER BY id"
    found = []

    with closing(session(source)) as connection:
        for rows in read_rows(connection, statement, plan):
            batch = pa.record_batch(rows.columns)
            found += zip(batch["id"].to_pylist(), batch["b"].to_pylist(), strict=True)

    assert [size for size, _ in found] == [1, *SIZES]
    assert all(len(value) == size and value.count(b"x") == size for size, value in found)


@pytest.mark.parametrize("flag", [0, CLIENT.DEPRECATE_EOF], ids=["EOF packets", "none"])
def test_result_ends_as_the_connection_has_agreed(source: Server, flag: int) -> None:
    source.run(
        "DROP TABLE IF EXISTS ends", "CREATE TABLE ends (id INT)", "INSERT INTO ends VALUES (1), (2)", database="t"
    )
    plan = plan_of_table(source, "ends")

    # PyMySQL itself can't read rows of a connection without EOF packets
    with closing(source.connect(client_flag=flag)) as connection:
        assert bool(connection.client_flag & connection.server_capabilities & CLIENT.DEPRECATE_EOF) is bool(flag)
        for _ in range(2):
            batches, result = read(connection, plan)
            assert [row["id"] for batch in batches for row in batch.to_pylist()] == [1, 2]
            assert result.rows == 2


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_rows_come_over_the_socket_that_pymysql_has_made(mysql: Server, encrypted: bool) -> None:
    mysql.run(
        "DROP TABLE IF EXISTS sent",
        "CREATE TABLE sent (id INT PRIMARY KEY, v TEXT)",
        "INSERT INTO sent VALUES (1, REPEAT('grün ', 9999)), (2, NULL)",
        database="t",
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plan = plan_of_table(mysql, "sent")

    with closing(session(mysql, ssl=context if encrypted else None, ssl_disabled=not encrypted)) as connection:
        assert isinstance(connection._sock, ssl.SSLSocket) is encrypted
        batches, _ = read(connection, plan)

    assert [row["v"] for batch in batches for row in batch.to_pylist()] == ["grün " * 9999, None]


def _make_many(server: Server) -> None:
    few = ", ".join(f"({number})" for number in range(13))
    server.run(
        "SET sql_log_bin = 0",
        "CREATE TABLE IF NOT EXISTS few (id INT PRIMARY KEY)",
        f"INSERT IGNORE INTO few VALUES {few}",
        "CREATE TABLE IF NOT EXISTS heap (id INT PRIMARY KEY, v TEXT) ENGINE=MyISAM",
        "INSERT IGNORE INTO heap SELECT a.id + 13 * b.id + 169 * c.id, REPEAT('x', 20000) FROM few a, few b, few c",
        database="t",
    )


def test_error_in_the_middle_of_rows_is_told_by_its_code_and_ends_the_connection(source: Server) -> None:
    _make_many(source)
    connection = session(source)
    received: list[int] = []

    def kill(size: int) -> None:
        if not received:
            source.run(f"KILL QUERY {connection.thread_id()}")
        received.append(size)

    with pytest.raises(SourceFailed, match="code 1317"):
        read(connection, plan_of_table(source, "heap"), batch_rows=10, received=kill)

    assert len(received) > 1
    assert not connection.open


def test_reading_that_is_left_or_cancelled_ends_the_connection_and_the_plan_goes_on(source: Server) -> None:
    _make_many(source)
    plan = plan_of_table(source, "heap")
    left, cancelled = session(source), session(source)

    for rows in read_rows(left, unchunked_statement(plan.table, plan.expressions), plan, 10):
        assert rows.row_count == 10
        break

    def cancel(size: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        read(cancelled, plan, received=cancel)

    assert not left.open
    assert not cancelled.open
    with closing(session(source)) as connection:
        assert read(connection, plan)[1].rows == 13**3


def test_plan_is_used_by_several_connections_at_once(source: Server) -> None:
    _make_many(source)
    plan = plan_of_table(source, "heap", key_columns=1)
    statement = unchunked_statement(plan.table, [*plan.expressions, "CAST(id AS CHAR)"])

    def rows_of(part: int) -> tuple[set[int], tuple[bytes | None, ...]]:
        with closing(session(source)) as connection:
            batches, result = read(connection, plan, f"{statement} WHERE id % 3 = {part} ORDER BY id", batch_rows=37)
        return {row["id"] for batch in batches for row in batch.to_pylist()}, result.last_row

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(rows_of, range(3)))

    assert [rows for rows, _ in found] == [set(range(part, 13**3, 3)) for part in range(3)]
    assert [last for _, last in found] == [(str(max(rows)).encode(),) for rows, _ in found]


ALTERATIONS = (
    *("DROP COLUMN v", "RENAME COLUMN v TO w", "MODIFY v VARCHAR(20) CHARACTER SET latin1", "MODIFY v TEXT"),
    *("MODIFY n BIGINT", "MODIFY n INT UNSIGNED", "MODIFY d DECIMAL(9,3)", "MODIFY d DECIMAL(10,2)", "MODIFY d DOUBLE"),
    *(
        "MODIFY b BINARY(5)",
        "MODIFY b VARBINARY(4)",
        "MODIFY i BIT(10)",
        "MODIFY t DATETIME(4)",
        "MODIFY t TIMESTAMP(3)",
    ),
    "RENAME TO moved_away",
)


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_table_that_was_altered_since_its_definition_was_read_is_noticed(source: Server, alteration: str) -> None:
    source.run(
        "DROP TABLE IF EXISTS moved, moved_away",
        "CREATE TABLE moved (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4, n INT, d DECIMAL(9,2),"
        " b BINARY(4), i BIT(9), t DATETIME(3) NULL)",
        "INSERT INTO moved VALUES (1, 'é', 1, 1.5, 'x', 1, '2024-01-01')",
        database="t",
    )
    plan = plan_of_table(source, "moved")
    with closing(session(source)) as connection:
        assert read(connection, plan)[1].rows == 1
        source.run(f"ALTER TABLE moved {alteration}", database="t")

        with pytest.raises(DefinitionMoved, match=r"t\.moved"):
            read(connection, plan)


def test_definition_that_only_grew_does_not_stop_the_reading(source: Server) -> None:
    source.run(
        "DROP TABLE IF EXISTS grown",
        "CREATE TABLE grown (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO grown VALUES (1, 'x')",
        database="t",
    )
    plan = plan_of_table(source, "grown")
    source.run("ALTER TABLE grown ADD COLUMN w INT FIRST, MODIFY v VARCHAR(200)", database="t")

    with closing(session(source)) as connection:
        batches, _ = read(connection, plan)

    assert [row["v"] for batch in batches for row in batch.to_pylist()] == ["x"]


def test_settings_of_the_server_do_not_change_values(source: Server) -> None:
    before = source.run("SELECT @@global.sql_mode, @@global.time_zone, @@global.sql_select_limit")[0]
    data = logged(
        source,
        "DROP TABLE IF EXISTS set_apart",
        "CREATE TABLE set_apart (id INT PRIMARY KEY, c CHAR(9) CHARACTER SET latin1, ts TIMESTAMP NULL, d DATETIME,"
        " y INT(9) ZEROFILL, f FLOAT(7,3), e ENUM('ä', 'b') CHARACTER SET latin1)",
        "SET time_zone = '+00:00', sql_mode = ''",
        "INSERT INTO set_apart VALUES (1, 'ab', '2024-01-01 12:00:00', '0000-00-00', 7, 1.25, 'ä'),"
        " (2, '', 0, '2024-02-00', 0, -0.125, 0)",
    )
    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("set_apart")
    try:
        source.run(
            "SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES'",
            "SET GLOBAL time_zone = '+05:30'",
            "SET GLOBAL sql_select_limit = 1",
        )
        assert_select_gives_the_same(source, changes, "set_apart")
    finally:
        connection = source.connect()
        with closing(connection), connection.cursor() as cursor:
            names = ("sql_mode", "time_zone", "sql_select_limit")
            for name, value in zip(names, before, strict=True):
                cursor.execute(f"SET GLOBAL {name} = %s", (value,))
    assert changes.num_rows == 2


def test_ignored_columns_are_not_selected(source: Server) -> None:
    source.run(
        "DROP TABLE IF EXISTS partly",
        "CREATE TABLE partly (id INT PRIMARY KEY, Secret VARCHAR(20), v INT DEFAULT 7)",
        "INSERT INTO partly VALUES (1, 'canary', 5)",
        database="t",
    )
    plan = plan_of_table(source, "partly", ignored=["secret"])

    with closing(session(source)) as connection:
        (batch,), _ = read(connection, plan)

    assert plan.expressions == ("`id`", "`v`")
    assert batch.to_pylist() == [{"id": 1, "v": 5, "_unrepresentable": None}]
    sent = [column for column in columns_of(definition_of(source, "partly")) if column.name != "Secret"]
    assert (plan.columns, plan.schema_id) == (tuple(sent), schema_id(tuple(sent)))
    assert batch.schema.field("v").metadata[b"menura.default"] == b":7"


def test_hidden_columns_of_mariadb_are_read_if_a_statement_can_name_them(mariadb: Server) -> None:
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS hashed, versioned",
        "CREATE TABLE hashed (id INT PRIMARY KEY, a TEXT, UNIQUE (a))",
        "INSERT INTO hashed VALUES (1, 'x'), (2, NULL)",
        "CREATE TABLE versioned (id INT PRIMARY KEY, a INT) WITH SYSTEM VERSIONING",
        "INSERT INTO versioned VALUES (1, 5), (2, 6)",
    )
    defined = definitions(mariadb, "hashed", "versioned")
    decoded = decode_all(data, mariadb=True, defined=defined)

    rows = selected(mariadb, "hashed")

    assert rows.to_pylist() == [
        {"id": 1, "a": "x", "_unrepresentable": None},
        {"id": 2, "a": None, "_unrepresentable": None},
    ]
    assert_select_gives_the_same(mariadb, decoded.table("versioned"), "versioned")


def test_rows_of_a_dump_are_encoded_as_the_columns_they_are(source: Server) -> None:
    source.run(
        "DROP TABLE IF EXISTS sent_on",
        "CREATE TABLE sent_on (id INT PRIMARY KEY, v DATE)",
        "INSERT INTO sent_on VALUES (1, '2024-02-29'), (2, NULL)",
        database="t",
    )
    definition = definition_of(source, "sent_on")
    plan = plan_for(source_config(source), ("t", "sent_on"), definition, mariadb=source.flavor == "mariadb")

    with closing(session(source)) as connection:
        (rows,) = read_rows(connection, unchunked_statement(plan.table, plan.expressions), plan)
        columns = pa.table(rows.columns)  # which keeps them
        encoded = encode_snapshot(rows, Compression.LZ4)

    sent = read_table(b"".join(encoded.rows), encoded.rows_bytes)
    assert sent.equals(columns, check_metadata=True)
    assert (rows.row_count, rows.schema_id, encoded.rows_bytes > 0) == (2, plan.schema_id, True)
