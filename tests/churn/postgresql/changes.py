"""Changes of rows on PostgreSQL; a column gets values of the type that it has now."""

from collections.abc import Callable, Mapping

import psycopg
from psycopg.pq import TransactionStatus

from tests.churn.kind import KEYS, Columns, Dice, Shape
from tests.live_source import LiveSource

_LOCKED = frozenset({"40P01", "55P03"})
#: what writers and DDL may do to each other
_MEETINGS = _LOCKED | {
    "23502", "23503", "23505", "23514",  # a constraint
    "22001", "22003", "22007", "22008", "22P02",  # a value that does not fit
    "42703", "42P01", "42704", "42804", "42883", "42P10", "42601", "42846",  # the table is another one by now
    "428C9",  # a value for a generated column
    "0A000",  # a cached plan whose result is another one by now
    "55000",  # a table without a replica identity
    "55006",  # in use by this session's other statements
    "XX000",  # a relation or a type that goes while it is looked up
}  # fmt: skip
#: those that a writer may give a value
_WRITABLE = """
    SELECT relname, attname, format_type(atttypid, atttypmod)
    FROM pg_attribute JOIN pg_class AS of_class ON of_class.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
    AND attgenerated = '' AND attidentity = '' ORDER BY relname, attnum
"""
LARGE_ROWS = 2_000


def is_meeting(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate in _MEETINGS


def is_locked(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate in _LOCKED


def is_lost(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and (error.sqlstate is None or error.sqlstate[:2] in ("08", "57"))


def quoted(name: str) -> str:
    return f'"{name}"'


class PostgresqlSession:
    def __init__(self, source: LiveSource) -> None:
        self._connection = source.connect(prepare_threshold=None)
        self._connection.execute("SET lock_timeout = '3s'")

    def columns(self, tables: Mapping[str, Shape]) -> Columns:
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in self._connection.execute(_WRITABLE):
            if table in tables and column not in tables[table].key:
                found.setdefault(table, {})[column] = kind
        return found

    def run(self, statements: str) -> None:
        try:
            self._connection.execute(statements)
        except psycopg.Error:
            if self._connection.info.transaction_status in (TransactionStatus.INERROR, TransactionStatus.INTRANS):
                self._connection.rollback()
            raise

    def close(self) -> None:
        self._connection.close()


def transaction(dice: Dice, shapes: Mapping[str, Shape], columns: Columns) -> list[str]:
    """Most of a few changes; some of many rows, with savepoints, in two phases, or rolled back."""
    tables = dice.choices(sorted(columns), k=dice.randint(1, 4))
    changes = [change(dice, table, shapes[table], columns[table]) for table in tables]
    what = dice.random()
    if what < 0.01:
        changes.append(many(dice, tables[0], shapes[tables[0]], columns[tables[0]]))
    elif what < 0.1:
        inner = [change(dice, table, shapes[table], columns[table]) for table in tables]
        end = dice.choice(["ROLLBACK TO s", "RELEASE s", "ROLLBACK TO s; RELEASE s"])
        changes = [*changes, "SAVEPOINT s", *inner, end, *changes[:1]]
    elif what < 0.14:
        name = f"{dice.getrandbits(60):x}"
        end = "ROLLBACK" if dice.random() < 0.2 else "COMMIT"
        return ["; ".join(["BEGIN", *changes, f"PREPARE TRANSACTION '{name}'"]), f"{end} PREPARED '{name}'"]
    return ["; ".join(["BEGIN", *changes, "ROLLBACK" if dice.random() < 0.03 else "COMMIT"])]


def many(dice: Dice, table: str, shape: Shape, columns: Mapping[str, str]) -> str:
    """One statement of so many rows that the server writes the transaction to its disk before it is sent."""
    if "id" not in shape.key or not columns:
        return change(dice, table, shape, columns)
    column = dice.choice(sorted(columns))
    least = KEYS + dice.randrange(KEYS) * LARGE_ROWS
    row = {"id": "n", **{name: value(dice, shape, name, kind) for name, kind in columns.items()}}
    names, values = ", ".join(map(quoted, row)), ", ".join(row.values())
    return dice.choice(
        [
            f"UPDATE {table} SET {quoted(column)} = {value(dice, shape, column, columns[column])} WHERE id < {KEYS}",
            f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series({least}, {least + LARGE_ROWS}) AS n"
            f" ON CONFLICT DO NOTHING; DELETE FROM {table} WHERE id BETWEEN {least + 9} AND {least + LARGE_ROWS}",
        ]
    )


def change(dice: Dice, table: str, shape: Shape, columns: Mapping[str, str]) -> str:
    """One change of one table."""
    values = {column: value(dice, shape, column, kind) for column, kind in columns.items()}
    keys = {column: make(dice) for column, make in shape.key.items()}
    found = keys or dict(list(values.items())[:1])
    where = " AND ".join(f"{quoted(column)} IS NOT DISTINCT FROM {literal}" for column, literal in found.items())
    if not keys:
        where = f"ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE {where} LIMIT 3))"
    what = dice.random()
    if what < 0.5 or not values:
        return _insert(table, keys, values, overwrites=what < 0.2)
    if what < 0.78:
        chosen = dice.sample(sorted(values), dice.randint(1, len(values)))
        return f"UPDATE {table} SET {', '.join(f'{quoted(name)} = {values[name]}' for name in chosen)} WHERE {where}"
    if what < 0.82 and keys:
        moved = {**keys, (column := dice.choice(sorted(keys))): shape.key[column](dice)}
        taken = " AND ".join(f"{quoted(name)} = {literal}" for name, literal in moved.items())
        free = f"NOT EXISTS (SELECT FROM {table} WHERE {taken})"
        return f"UPDATE {table} SET {quoted(column)} = {moved[column]} WHERE {where} AND {free}"
    return f"DELETE FROM {table} WHERE {where}"


def _insert(table: str, keys: Mapping[str, str], values: Mapping[str, str], *, overwrites: bool) -> str:
    row = {**values, **keys}
    on_conflict = "NOTHING"
    if overwrites and keys and values:
        taken = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in values)
        return (
            f"INSERT INTO {table} ({', '.join(map(quoted, row))}) VALUES ({', '.join(row.values())})"
            f" ON CONFLICT ({', '.join(map(quoted, keys))}) DO UPDATE SET {taken}"
        )
    names, literals = ", ".join(map(quoted, row)), ", ".join(row.values())
    return f"INSERT INTO {table} ({names}) VALUES ({literals}) ON CONFLICT DO {on_conflict}"


#: by the type's name up to its modifier
_LITERALS: dict[str, Callable[[Dice], str]] = {
    "smallint": lambda dice: str(dice.randrange(-200, 30_000)),
    "integer": lambda dice: str(dice.randrange(-200, 70_000)),
    "bigint": lambda dice: str(dice.randrange(-200, 70_000)),
    "numeric": lambda dice: f"{dice.randrange(-(10**6), 10**6) / 10_000:.4f}",
    "real": lambda dice: f"{dice.randrange(-(10**6), 10**6) / 10_000:.4f}",
    "double precision": lambda dice: f"{dice.randrange(-(10**6), 10**6) / 10_000:.4f}",
    "boolean": lambda dice: dice.choice(["true", "false"]),
    "uuid": lambda dice: f"md5('{dice.random()}')::uuid",
    "jsonb": lambda dice: f"""'{{"a": [{dice.randrange(9)}, null], "ü": "☃"}}'""",
    "bytea": lambda dice: f"'\\x{dice.getrandbits(32):08x}'",
    "date": lambda dice: f"'20{dice.randrange(1, 38):02}-0{dice.randrange(1, 10)}-17'",
    "time": lambda dice: f"'{dice.randrange(24):02}:59:07.{dice.randrange(10**6):06}'",
    "timestamp": lambda dice: f"'20{dice.randrange(1, 38):02}-07-17 23:59:59.{dice.randrange(10**6):06}'",
    "interval": lambda dice: f"'{dice.randrange(99)} days {dice.randrange(99)}:05:07.25'",
    "integer[]": lambda dice: f"'{{{dice.randrange(9)},NULL}}'",
    "mood": lambda dice: f"(enum_range(NULL::mood))[{dice.randint(1, 3)}]",
    "mood[]": lambda dice: f"(enum_range(NULL::mood))[1:{dice.randint(0, 3)}]",
    "pair": lambda dice: f"""jsonb_populate_record(NULL::pair, '{{"a": {dice.randrange(9)}, "b": "x y"}}')""",
}


def value(dice: Dice, shape: Shape, column: str, kind: str) -> str:
    fitting = (shape.values or {}).get(column)
    if fitting is not None:
        return fitting(dice)
    if dice.random() < 0.15:
        return "NULL"
    name = kind.partition("(")[0]
    name = "timestamp" if name.startswith("timestamp") else "time" if name.startswith("time ") else name
    texts = ["'x'", "'a'", "'é☃'", "'t  '", "''", f"'{dice.randrange(KEYS)}'"]
    return _LITERALS[name](dice) if name in _LITERALS else dice.choice(texts)
