"""A PostgreSQL's tables beside the lake's, value for value, and agents that read them.

The source is asked for its own texts, by each type's output function; the lake's values are turned into the same.
"""

import datetime
import decimal
import json
import re
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from menura.naming import lake_column
from psycopg import sql

from agent.sources.postgresql.columns import distinct_names
from spark_sink.work import TableId
from tests.agent.postgresql.sources import entries, login
from tests.compare import NO_COLUMN, Comparison
from tests.e2e.lake import rows_in_lake, table_path
from tests.postgres import SourceServer
from tests.stack import Process, Stack

DATABASE = "shop"
SCHEMA = "public"

Row = tuple[object, ...]
_SETTINGS = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex -c lc_monetary=C"
_COLUMNS = """
    SELECT attname, format_type(coalesce(nullif(typbasetype, 0), type.oid), CASE WHEN typbasetype = 0 THEN atttypmod
           ELSE typtypmod END)
    FROM pg_attribute JOIN pg_type AS type ON type.oid = atttypid
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_FLOATS = ("real", "double precision")
_WHOLE_NUMBERS = ("smallint", "integer", "bigint")
_SCALED = re.compile(r"numeric\(\d+,(\d+)\)")


@dataclass(frozen=True)
class SourceColumn:
    name: str
    type: str
    #: as it travels
    sent: str


def agent(running: Stack, name: str, sources: Mapping[str, SourceServer], **others: object) -> Process:
    """Not started; `others` are further entries of each source."""
    return running.agent_of(
        name,
        {
            source: {"kind": "postgresql", "client": entries(login(server)), **others}
            for source, server in sources.items()
        },
    )


def may_publish(server: SourceServer, *tables: str, database: str = DATABASE) -> None:
    """The agent's user may make the publication, and add these tables."""
    server.run(
        f'GRANT CREATE ON DATABASE "{database}" TO menura',
        *(f"ALTER TABLE {table} OWNER TO menura" for table in tables),
        database=database,
    )


def read_source(
    server: SourceServer, table: str, schema: str = SCHEMA, ignored: Iterable[str] = ()
) -> tuple[list[SourceColumn], list[Row]]:
    with server.connect(DATABASE, options=_SETTINGS) as connection:
        name = sql.Identifier(schema, table)
        found = connection.execute(_COLUMNS, [name.as_string(connection)]).fetchall()
        names = distinct_names([column for column, _ in found])
        columns = [
            SourceColumn(column, kind, sent)
            for (column, kind), sent in zip(found, names, strict=True)
            if column not in set(ignored)
        ]
        texts = [
            sql.SQL("CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {0}) END").format(
                sql.Identifier(column.name)
            )
            for column in columns
        ]
        rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(texts), name)).fetchall()
    return columns, [tuple(map(_comparable, columns, row)) for row in rows]


def _comparable(column: SourceColumn, text: str | None) -> object:
    if text is None or column.type not in _FLOATS:
        return text
    number = float(text)
    return repr(struct.unpack("f", struct.pack("f", number))[0] if column.type == "real" else number)


def _with_digits(text: str, scale: int) -> str:
    """A number with so many digits behind the point; one that would not be the same is left alone."""
    try:
        number = decimal.Decimal(text)
        exact = number.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=200))
    except decimal.InvalidOperation:
        return text
    return f"{exact:f}" if exact == number else text


def in_lake(column: SourceColumn, value: object) -> object:
    """A value of the lake in the server's words, also of a column that has had another type."""
    scaled = _SCALED.fullmatch(column.type)
    match value:
        case None:
            return None
        case int() | float() | decimal.Decimal() | str() if column.type in _FLOATS and not isinstance(value, bool):
            return _comparable(column, str(value))
        case float() | decimal.Decimal() | str() if column.type in _WHOLE_NUMBERS or scaled:
            return _with_digits(str(value), int(scaled[1]) if scaled else 0)
        case bool():
            return "t" if value else "f"
        case float():
            return repr(value)
        case bytes():
            return f"\\x{value.hex()}"
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
            text = text.rstrip("0") if "." in text else text
            return f"{text}+00" if "with time zone" in column.type else text
        case datetime.date():
            return value.isoformat()
        case int() if column.type.startswith("time"):
            seconds, micros = divmod(value, 1_000_000)
            text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            return f"{text}.{micros:06}".rstrip("0") if micros else text
        case decimal.Decimal():
            return f"{value:f}"
    return str(value)


def compare_table(
    running: Stack, source: str, server: SourceServer, table: str, schema: str = SCHEMA, ignored: Iterable[str] = ()
) -> Comparison:
    columns, rows = read_source(server, table, schema, ignored)
    found = rows_in_lake(running.lake, TableId(running.tenant, source, schema, table))
    return compared(f"{schema}.{table}", columns, rows, found, {c.sent: lake_column(c.sent) for c in columns})


def compared(
    name: str,
    columns: Sequence[SourceColumn],
    rows: Iterable[Row],
    found: Sequence[Mapping[str, object]],
    names: Mapping[str, str],
) -> Comparison:
    """The server's rows beside those `found`; `names`: which of their values is that of a column as it travels."""

    def words(row: Mapping[str, object]) -> Row:
        extra = json.loads(str(row["_unrepresentable"])) if row.get("_unrepresentable") else {}
        lacking = json.loads(str(row["_absent"])) if row.get("_absent") else []
        return tuple(_in_row(column, names[column.sent], row, extra, lacking) for column in columns)

    in_source, in_rows = Counter(rows), Counter(map(words, found))
    return Comparison(
        name,
        in_source.total(),
        len(found),
        list((in_source - in_rows).elements()),
        list((in_rows - in_source).elements()),
        tuple(column.name for column in columns),
    )


def _in_row(
    column: SourceColumn, name: str, row: Mapping[str, object], extra: Mapping[str, str], lacking: Sequence[str]
) -> object:
    if name not in row or name in lacking:
        return NO_COLUMN
    return extra[column.sent] if column.sent in extra else in_lake(column, row[name])


def wait_until_equal(
    running: Stack,
    source: str,
    server: SourceServer,
    *tables: str,
    schema: str = SCHEMA,
    seconds: float = 600,
    ignored: Iterable[str] = (),
) -> None:
    """Until every table's current state equals its source, whose writers have stopped; else what differs."""
    deadline = time.monotonic() + seconds
    waiting = list(tables)
    while waiting:
        asked = time.monotonic()
        compared = compare_table(running, source, server, waiting[0], schema, ignored)
        now = time.monotonic()
        if compared.equal:
            waiting.pop(0)
        elif now > deadline:
            told = running.told(source, schema, waiting[0])
            raise AssertionError(f"not equal after {seconds:.0f} s: {compared}\n{told}")
        else:
            time.sleep(max(0.5, 2 * (now - asked)))


def changelog(running: Stack, source: str, table: str, schema: str = SCHEMA) -> list[dict[str, object]]:
    """The changelog's rows in the order of their numbers."""
    path: Path = table_path(running.lake, running.tenant, source, schema, table, "changelog")
    rows: list[dict[str, object]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_gsn"], row["_change_type"] != "update_preimage"))
