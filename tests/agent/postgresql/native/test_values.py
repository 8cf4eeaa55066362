"""Every type's values, with the odd ones, as the stream and a SELECT hold them: both against the server's own text."""

import datetime
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.sources.postgresql.native.results import ResultReason, RowsDecoder, RowsPlan
from agent.sources.postgresql.stream.relations import parse_relation
from agent.sources.postgresql.types import Form, builtin_type, named_type
from tests.agent.postgresql.native.capture import decode, plan_of, record, selected, streamed
from tests.postgres import SourceServer

#: type: values as SQL expressions
TYPES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("0", "-1", "32767", "-32768"),
    "integer": ("0", "7", "2147483647", "-2147483648"),
    "bigint": ("0", "9223372036854775807", "-9223372036854775808"),
    "oid": ("0", "4294967295"),
    "xid": ("'0'", "'4294967295'"),
    "cid": ("'3'",),
    "real": (
        "0",
        "'-0'",
        "1.5",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "1e-45",
        "3.4028235e38",
        "16777217",
        "0.1",
        "1e20",
    ),
    "double precision": (
        *("0", "'-0'", "1.5", "'NaN'", "'Infinity'", "'-Infinity'", "5e-324", "1.7976931348623157e308"),
        *("0.1", "1e-7", "123456789012345678", "2.2250738585072014e-308", "-2.2250738585072011e-308", "pi()"),
    ),
    "numeric(10,2)": ("0", "-0.01", "12.3", "99999999.99", "-99999999.99", "'NaN'"),
    "numeric(5,5)": ("0", "0.00001", "-0.99999"),
    "numeric(18)": ("0", "999999999999999999", "-999999999999999999"),
    "numeric(19,4)": ("0.0001", "999999999999999.9999", "-999999999999999.9999", "'NaN'"),
    "numeric(38,10)": ("0", "9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999"),
    "numeric(38)": ("99999999999999999999999999999999999999", "-1"),
    "numeric(38,38)": ("0.99999999999999999999999999999999999999", "-0.00000000000000000000000000000000000001"),
    "numeric(39,1)": ("12345678901234567890123456789012345678.9", "'NaN'"),
    "numeric": (
        "0.10",
        "1e-20",
        "12345678901234567890.123456789",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "10::numeric ^ 200",
    ),
    "text": ("''", "'a'", "E'tab\\tline\\nquote\"'", "'žluťoučký'", "'日本'", "'😀'", "repeat('x', 1000)"),
    "varchar(20)": ("'abc'", "''"),
    "char(5)": ("'ab'", "''", "'abcde'"),
    '"char"': ("'a'", "''"),
    "name": ("'a name'",),
    "bytea": ("''", "'\\x00ff'", "decode(repeat('0123456789abcdef', 100), 'hex')"),
    "date": (
        *("'1970-01-01'", "'0001-01-01'", "'9999-12-31'", "'10000-01-01'", "'5874897-12-31'", "'2024-02-29'"),
        *("'0001-12-31 BC'", "'4713-01-01 BC'", "'infinity'", "'-infinity'"),
    ),
    "timestamp": (
        *(
            "'1970-01-01'",
            "'0001-01-01'",
            "'9999-12-31 23:59:59.999999'",
            "'10000-01-01'",
            "'294276-12-31 23:59:59.999999'",
        ),
        *(
            "'2024-02-29 12:34:56.7'",
            "'1969-12-31 23:59:59.000001'",
            "'0044-03-15 12:00:00 BC'",
            "'infinity'",
            "'-infinity'",
        ),
    ),
    "timestamp(0)": ("'2024-02-29 12:34:56.7'",),
    "timestamptz": (
        *("'1970-01-01 00:00+00'", "'2024-03-31 02:30:00.25 Europe/Prague'", "'9999-12-31 23:59:59.999999+00'"),
        *(
            "'0001-01-01 00:00:00+00'",
            "'10000-01-01 00:00:00+00'",
            "'0044-03-15 12:00:00+00 BC'",
            "'infinity'",
            "'-infinity'",
        ),
    ),
    "timestamptz(3)": ("'2024-02-29 12:34:56.7891+05:30'",),
    "time": ("'00:00'", "'24:00:00'", "'23:59:59.999999'", "'12:34:56.7'"),
    "timetz": ("'24:00:00-15:59'", "'12:34:56.7+05:30'"),
    "interval": ("'1 year 2 mons -3 days 04:05:06.789'", "'0'", "'-1 day -00:00:00.000001'", "'178000000 years'"),
    "interval day to second(3)": ("'1 02:03:04.5678'",),
    "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",),
    "json": ('\'{"b": 1,   "a": [null, "\\u00e9"]}\'', "'null'"),
    "jsonb": ('\'{"b": 1,   "a": [null, "é", 1.10]}\'', "'null'", "'\"\"'"),
    "xml": ("'<a b=\"1\">é</a>'",),
    "money": ("12.34", "-92233720368547758.08"),
    "bit(3)": ("B'101'",),
    "varbit(9)": ("B''", "B'101010101'"),
    "inet": ("'192.168.0.1/24'", "'::1'", "'10.0.0.1'"),
    "cidr": ("'192.168.0.0/24'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "pg_lsn": ("'16/B374D848'",),
    "xid8": ("'18446744073709551615'",),
    "regclass": ("'pg_class'",),
    "point": ("'(1.5,-2)'",),
    "polygon": ("'((0,0),(1,1),(1,0))'",),
    "box": ("'(1,1),(0,0)'",),
    "circle": ("'<(0,0),1>'",),
    "tsvector": ("'a:1 fat:2A'",),
    "tsquery": ("'fat & (rat | cat)'",),
    "int4range": ("'[1,10)'", "'empty'", "'(,)'"),
    "tstzrange": ("'[2024-01-01 00:00+02,)'",),
    "int8multirange": ("'{[1,3), [5,9)}'", "'{}'"),
    "integer[]": ("'{}'", "'{1,NULL,-3}'", "'{{1,2},{3,4}}'", "'[2:3]={5,6}'"),
    "text[]": ("'{}'", "ARRAY['a', 'b,c', 'd\"e', '', NULL, 'NULL', '\\', 'é']"),
    "numeric(10,2)[]": ("'{1.5,NaN}'",),
    "timestamptz[]": ("'{2024-01-01 00:00+02,infinity}'",),
    "bytea[]": ("ARRAY['\\x00'::bytea]",),
    "mood": ("'happy'", "'so ''so'''"),
    "mood[]": ("'{happy}'",),
    "price": ("1.5", "0.01"),
    "pair": ("ROW(1, 'a,b')::pair", "ROW(NULL, NULL)::pair", "ROW(2, 'say \"x\"')::pair"),
}
DEFINITIONS = (
    "CREATE TYPE mood AS ENUM ('happy', 'so ''so''')",
    "CREATE DOMAIN price AS numeric(8,2) CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (number integer, name text)",
)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _day_time(text: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int((fraction + "000000")[:6])


#: what a form makes of the server's text, by other means than the decoder's
VALUES: dict[Form, Callable[[str], object]] = {
    Form.BOOL: {"t": True, "f": False}.__getitem__,
    **dict.fromkeys((Form.INT2, Form.INT4, Form.INT8, Form.UINT4), int),
    Form.FLOAT4: lambda text: struct.unpack("<f", struct.pack("<f", float(text)))[0],
    Form.FLOAT8: float,
    Form.DECIMAL: Decimal,
    Form.TEXT: str,
    Form.BYTES: lambda text: bytes.fromhex(text.removeprefix("\\x")),
    Form.DATE: datetime.date.fromisoformat,
    Form.TIME: _day_time,
    Form.TIMESTAMP: _moment,
    Form.TIMESTAMPTZ: _moment,
}


def is_beyond(form: Form, text: str) -> bool:
    """Whether the form can't hold the value."""
    if form is Form.DECIMAL:
        return text == "NaN"
    if form in (Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ):
        return "infinity" in text or text.endswith("BC") or text.index("-") > 4
    return False


def expected(form: Form, text: str | None) -> tuple[object, str | None]:
    """The value, and the text that is unrepresentable."""
    if text is None:
        return None, None
    return (None, text) if is_beyond(form, text) else (VALUES[form](text), None)


def comparable(value: object) -> object:
    """Of floats the bits."""
    return struct.pack("<d", value) if isinstance(value, float) and not math.isnan(value) else repr(value)


def found_in(rows: list[dict[str, object]], column: str) -> list[tuple[object, str | None]]:
    found = []
    for row in rows:
        others = json.loads(str(row["_unrepresentable"] or "{}"))
        assert set(others) <= {column}
        found.append((row[column], others.get(column)))
    return found


def both_ways(server: SourceServer, table: str, streamed_bytes: bytes) -> tuple[Form, list, list]:
    """A column v's form, and its values and what is unrepresentable, as the stream and as a SELECT has them."""
    decoded = decode(streamed_bytes)
    relation = next(
        relation
        for message in decoded.messages
        if message.kind == "R" and (relation := parse_relation(message.body)).name == table
    )
    planned = plan_of(relation).columns
    rows = decoded.rows(table, everything=True)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    plan = RowsPlan([each.column for each in planned], 1)
    decoder = RowsDecoder(plan)
    answer = selected(server, f"SELECT id, v, id::text AS k FROM {table} t ORDER BY t.id")
    decoder.writable()[: len(answer)] = answer
    decoder.received(len(answer))
    assert decoder.decode() is ResultReason.COMPLETE, decoder.error
    _, columns = decoder.take_rows()
    assert decoder.last_key == (str(len(rows)).encode(),)
    return planned[1].column.type.form, found_in(rows, "v"), found_in(rows_of_columns(columns), "v")


def rows_of_columns(columns: object) -> list[dict[str, object]]:
    found = pa.record_batch(columns)
    found.validate(full=True)
    return found.to_pylist()


def test_values_of_every_type_are_those_of_the_server(server: SourceServer) -> None:
    tables = {f"t{number}": (type_, values) for number, (type_, values) in enumerate(TYPES.items())}
    definitions = [f"CREATE TABLE {table} (id integer PRIMARY KEY, v {type_})" for table, (type_, _) in tables.items()]
    inserts = [
        f"INSERT INTO {table} VALUES "
        + ", ".join(f"({number}, {value})" for number, value in enumerate((*values, "NULL"), 1))
        for table, (_, values) in tables.items()
    ]
    data = streamed(server, *inserts, before=(*DEFINITIONS, *definitions))

    for table, (type_, values) in tables.items():
        form, by_stream, by_select = both_ways(server, table, data)
        texts = _texts(server, table)
        assert len(texts) == len(values) + 1
        wanted = [expected(form, text) for text in texts]
        assert list(map(_comparable, by_stream)) == list(map(_comparable, wanted)), type_
        assert list(map(_comparable, by_select)) == list(map(_comparable, wanted)), type_


def _comparable(found: tuple[object, str | None]) -> tuple[object, str | None]:
    value, text = found
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return comparable(value), text


def _texts(server: SourceServer, table: str) -> list[str | None]:
    """As the server prints the values, for a client that asks for text."""
    with server.connect(
        "shop", options="-c datestyle=ISO -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex -c lc_monetary=C"
    ) as connection:
        found = connection.execute(f"SELECT v FROM {table} ORDER BY id".encode(), binary=False)
        result = found.pgresult
        assert result is not None
        return [
            None if (value := result.get_value(row, 0)) is None else value.decode() for row in range(result.ntuples)
        ]


def test_a_domain_is_read_as_its_base_type() -> None:
    base = builtin_type(1700, ((8 << 16) | 2) + 4)

    assert named_type("price", base) == named_type("price", base) != base
    assert (named_type("price", base).form, named_type("price", base).scale) == (Form.DECIMAL, 2)


MOMENTS = st.datetimes()
GENERATED = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.decimals(-(10**20) + 1, 10**20 - 1, places=6, allow_nan=False),
    st.floats(),
    st.floats(width=32),
    MOMENTS,
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30),
    st.binary(max_size=30),
    st.dates(),
    st.booleans(),
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(GENERATED, min_size=20, max_size=200))
def test_generated_rows_are_read_as_they_were_written(
    package_server: SourceServer, rows: list[tuple[object, ...]]
) -> None:
    server = package_server
    server.renew_database()
    server.run(
        "CREATE TABLE g (id integer PRIMARY KEY, i bigint, n numeric(26,6), d double precision, f real, ts timestamp,"
        " t text, y bytea, da date, b boolean)",
        database="shop",
    )
    recording = record(server)
    with server.connect("shop") as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO g VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", enumerated(rows))

    found = decode(recording.stream()).rows("g")

    assert len(found) == len(rows)
    for row, wanted in zip(found, rows, strict=True):
        assert [comparable(row[name]) for name in "indf"] == [comparable(value) for value in wanted[:4]]
        assert [row[name] for name in ("ts", "t", "y", "da", "b")] == list(wanted[4:])


def enumerated(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [(number, *row) for number, row in enumerate(rows)]
