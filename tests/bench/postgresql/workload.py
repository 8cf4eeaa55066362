"""The rows of `tests.bench.workload` in a PostgreSQL, and for each case a slot that stands before them.

Rows are a function of their number, made inside the server. Nobody reads from a case's slot: each reader gets a copy of
it, so all read the same WAL.
"""

from dataclasses import dataclass
from itertools import count

from tests.postgres import SourceServer

DATABASE = "bench"
PUBLICATION = "bench"
#: rows of a bulk transaction
BULK_ROWS = 1000

_COLUMNS = """
    id bigint PRIMARY KEY, customer int NOT NULL, quantity smallint NOT NULL, flags smallint NOT NULL,
    price numeric(12,2) NOT NULL, weight double precision NOT NULL, sku varchar(32) NOT NULL,
    title varchar(120) NOT NULL, placed timestamp NOT NULL, changed timestamptz NOT NULL, code char(8) NOT NULL"""
#: as `format` takes it
_ROW = """
    n, n * 7 %% 100003, n %% 300, n %% 7, (n %% 99991) / 100.0, n / 3.0, 'SKU-' || lpad((n %% 50000)::text, 8, '0'),
    'Article number ' || n || ' of the catalogue, grün', timestamp '2024-01-01 00:00:00.123456' + n * interval '1 s',
    timestamptz '2024-01-01 00:00:00+00' + (n %% 31000000) * interval '1 s', lpad(to_hex(n %% 65536), 8, 'C')"""

_copies = count(1)


@dataclass(frozen=True)
class Case:
    """`rows` changes behind a slot; `dump`: a table of so many rows, and no slot."""

    name: str
    table: str
    rows: int
    slot: str


def prepare(server: SourceServer) -> None:
    """A procedure that fills a table, so many rows a transaction."""
    server.create_database(DATABASE)
    server.create_replication_user(DATABASE)
    server.run(
        f"""
        CREATE PROCEDURE fill(target text, total int, step int) LANGUAGE plpgsql AS $body$
        BEGIN
            FOR at_row IN 0 .. total - 1 BY step LOOP
                EXECUTE format($row$INSERT INTO %I SELECT {_ROW} FROM generate_series($1, $2) AS n$row$, target)
                    USING at_row::bigint, (at_row + step - 1)::bigint;
                COMMIT;
            END LOOP;
        END $body$""",
        f"CREATE PUBLICATION {PUBLICATION}",
        f"ALTER PUBLICATION {PUBLICATION} OWNER TO menura",
        database=DATABASE,
    )


def make(server: SourceServer, name: str, rows: int) -> Case:
    """Write one case behind a slot of its own."""
    table, slot = f"t_{name}", f"case_{name}"
    run = [f"CREATE TABLE {table} ({_COLUMNS})", f"GRANT SELECT ON {table} TO menura"]
    run += [f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}"]
    if name in ("update", "dump"):
        run += [f"CALL fill('{table}', {rows}, {BULK_ROWS})", f"VACUUM ANALYZE {table}"]
    if name != "dump":
        run += [f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"]
    match name:
        case "bulk":
            run += [f"CALL fill('{table}', {rows}, {BULK_ROWS})"]
        case "single":
            run += [f"CALL fill('{table}', {rows}, 1)"]
        case "update":
            run += [f"UPDATE {table} SET quantity = quantity + 1, title = title || '!'"]
    # what follows is in another transaction, so that every reader sees the last one end
    run += ["SELECT pg_logical_emit_message(true, 'bench', 'end')"]
    server.run(*run, database=DATABASE)
    return Case(name, table, rows, slot)


def slot_of(server: SourceServer, case: Case) -> str:
    """A new copy of the case's slot."""
    name = f"{case.slot}_{next(_copies)}"
    server.run(f"SELECT pg_copy_logical_replication_slot('{case.slot}', '{name}')", database=DATABASE)
    return name


def drop_slot(server: SourceServer, name: str) -> None:
    """Whoever has read from it has gone, or is made to."""
    server.run(
        "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots"
        f" WHERE slot_name = '{name}' AND active",
        f"SELECT pg_drop_replication_slot('{name}')",
    )
