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
from tests.agent.postgresql.native.values import DEFINITIONS, TYPES
from tests.postgres import SourceServer


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
