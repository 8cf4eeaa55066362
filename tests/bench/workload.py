"""The fixed data of the benchmarks: one eleven-column table, written in three ways or read, and one giant transaction.

Rows are a function of their number, made inside the server, so that every run reads the same values.
"""

from dataclasses import dataclass

from tests.servers import Server

COLUMNS = """
    id BIGINT NOT NULL PRIMARY KEY, customer INT UNSIGNED NOT NULL, quantity SMALLINT NOT NULL, flags TINYINT NOT NULL,
    price DECIMAL(12,2) NOT NULL, weight DOUBLE NOT NULL, sku VARCHAR(32) CHARACTER SET ascii NOT NULL,
    title VARCHAR(120) CHARACTER SET utf8mb4 NOT NULL, placed DATETIME(6) NOT NULL, changed TIMESTAMP NOT NULL,
    code CHAR(8) CHARACTER SET latin1 NOT NULL"""

_ROW = """
    n, n * 7 % 100003, n % 300, n % 7, n % 99991 / 100, n / 3, CONCAT('SKU-', LPAD(n % 50000, 8, '0')),
    CONCAT('Article number ', n, ' of the catalogue, grün'), '2024-01-01 00:00:00.123456' + INTERVAL n SECOND,
    '2024-01-01 00:00:00' + INTERVAL n % 31000000 SECOND, LPAD(HEX(n % 65536), 8, 'C')"""

#: of about 500 bytes a row, for the giant transaction
_WIDE_COLUMNS = "id BIGINT NOT NULL PRIMARY KEY, body VARCHAR(480) CHARACTER SET ascii NOT NULL"

#: rows of a bulk transaction
BULK_ROWS = 1000


@dataclass(frozen=True)
class Case:
    """A stretch of the binary log: from (file, offset) and the GTID set before it, `rows` row changes long.

    `dump`: a table of so many rows, and nothing in the log.
    """

    name: str
    table: str
    rows: int
    file: str
    gtid_set: str


def prepare(server: Server) -> None:
    """The helpers of `make`: a table of numbers and a procedure that fills a table in steps of one transaction."""
    quoted_row = _ROW.replace("'", "''")
    statements = [
        "CREATE DATABASE bench",
        "CREATE TABLE bench.digits (d INT PRIMARY KEY)",
        "INSERT INTO bench.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)",
        "CREATE TABLE bench.numbers (n INT PRIMARY KEY)",
        "INSERT INTO bench.numbers SELECT a.d * 100 + b.d * 10 + c.d "
        "FROM bench.digits a, bench.digits b, bench.digits c",
        f"""CREATE PROCEDURE bench.fill(IN target VARCHAR(20), IN first INT, IN total INT, IN step INT)
        BEGIN
            SET @at = first;
            SET @text = CONCAT('INSERT INTO bench.', target, ' SELECT {quoted_row} FROM
                (SELECT numbers.n + ? AS n FROM bench.numbers WHERE numbers.n < ?) AS source');
            PREPARE insertion FROM @text;
            SET @step = step;
            WHILE @at < first + total DO
                EXECUTE insertion USING @at, @step;
                SET @at = @at + step;
            END WHILE;
        END""",
    ]
    server.run(*statements)


def make(server: Server, name: str, rows: int) -> Case:
    """Write one case into a binary log file of its own."""
    table = f"t_{name}"
    server.run(f"CREATE TABLE bench.{table} ({_WIDE_COLUMNS if name == 'giant' else COLUMNS})")
    if name == "update":
        server.run(f"CALL bench.fill('{table}', 0, {rows}, {BULK_ROWS})")
    if name == "dump":
        server.run("SET sql_log_bin = 0", f"CALL bench.fill('{table}', 0, {rows}, {BULK_ROWS})")
    server.run("FLUSH BINARY LOGS")
    file, _, _, _, gtid_set = server.run("SHOW BINARY LOG STATUS")[0]
    if name == "bulk":
        server.run(f"CALL bench.fill('{table}', 0, {rows}, {BULK_ROWS})")
    elif name == "single":
        server.run(f"CALL bench.fill('{table}', 0, {rows}, 1)")
    elif name == "update":
        server.run(f"UPDATE bench.{table} SET quantity = quantity + 1, title = CONCAT(title, '!')")
    elif name == "giant":
        server.run(
            f"INSERT INTO bench.{table} SELECT n, REPEAT(SHA2(n, 256), 7) FROM"
            " (SELECT (a.n * 1000 + b.n) * 1000 + c.n AS n FROM bench.numbers a, bench.numbers b, bench.numbers c"
            f" WHERE a.n * 1000000 < {rows}) AS source WHERE n < {rows}",
            database="bench",
        )
    elif name != "dump":
        raise ValueError(f"no case {name}: bulk, single, update, giant or dump")
    server.run("FLUSH BINARY LOGS")
    return Case(name, table, rows, str(file), str(gtid_set).replace("\n", ""))
