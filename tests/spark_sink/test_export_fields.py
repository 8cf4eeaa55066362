"""Each type of the lake as Debezium's connectors give it: golden values."""

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.export.fields import Decimals, field_of, plain
from spark_sink.export.rows import Shape
from spark_sink.lake.delta_table import Layout

AT_US = 1_769_860_800_123_456
INSTANT = datetime.fromtimestamp(AT_US // 1_000_000, UTC).replace(microsecond=123_456)
AT = INSTANT.replace(tzinfo=None)
NUMERIC = "org.apache.kafka.connect.data.Decimal"


def coded(value: bytes) -> str:
    return base64.b64encode(value).decode()


#: the lake's type, the source's words, a value, Connect's type, its name, what stands in JSON
CASES: list[tuple[pa.DataType, str, Any, str, str, Any]] = [
    (pa.int64(), "tinyint", -1, "int16", "", -1),
    (pa.int64(), "smallint unsigned", 65535, "int32", "", 65535),
    (pa.int64(), "mediumint", 7, "int32", "", 7),
    (pa.int64(), "int", 7, "int32", "", 7),
    (pa.int64(), "int unsigned", 2**32 - 1, "int64", "", 2**32 - 1),
    (pa.int64(), "integer", 7, "int32", "", 7),
    (pa.int64(), "", 7, "int64", "", 7),
    (pa.decimal128(20, 0), "bigint unsigned", Decimal(2**64 - 1), "int64", "", 2**64 - 1),
    (pa.int64(), "year", 2026, "int32", "io.debezium.time.Year", 2026),
    (pa.int64(), "time(3)", -1_500_000, "int64", "io.debezium.time.MicroTime", -1_500_000),
    (pa.int64(), "bit(1)", 1, "boolean", "", True),
    (pa.int64(), "bit(10)", 513, "bytes", "io.debezium.data.Bits", coded(b"\x01\x02")),
    (pa.int64(), "bit(8)", 300, "bytes", "io.debezium.data.Bits", coded(b"\x2c\x01")),
    (pa.string(), "bit(3)", "101", "bytes", "io.debezium.data.Bits", coded(b"\x05")),
    (pa.string(), "bit varying", "100000001", "bytes", "io.debezium.data.Bits", coded(b"\x01\x01")),
    (pa.decimal128(10, 2), "decimal(10,2)", Decimal("123.45"), "bytes", NUMERIC, "MDk="),
    (pa.decimal128(38, 2), "", Decimal("-0.01"), "bytes", NUMERIC, "/w=="),
    (pa.string(), "numeric(2,-3)", "-12000", "bytes", NUMERIC, "9A=="),
    (pa.string(), "decimal(40,1)", "9" * 39 + ".5", "bytes", NUMERIC, coded((10**40 - 5).to_bytes(17, "big"))),
    (
        pa.string(),
        "numeric",
        "1.50",
        "struct",
        "io.debezium.data.VariableScaleDecimal",
        {"scale": 2, "value": "AJY="},
    ),
    (pa.float32(), "float", 0.1, "float", "", 0.1),
    (pa.float64(), "double", -0.0, "double", "", -0.0),
    (pa.float64(), "double precision", float("-inf"), "double", "", "-Infinity"),
    (pa.float64(), "double precision", float("nan"), "double", "", "NaN"),
    (pa.date32(), "date", date(1969, 12, 31), "int32", "io.debezium.time.Date", -1),
    (pa.timestamp("us"), "datetime", AT.replace(microsecond=0), "int64", "io.debezium.time.Timestamp",
     AT_US // 1_000_000 * 1000),
    (pa.timestamp("us"), "datetime(6)", AT, "int64", "io.debezium.time.MicroTimestamp", AT_US),
    (pa.timestamp("us"), "timestamp without time zone", AT, "int64", "io.debezium.time.MicroTimestamp", AT_US),
    (pa.timestamp("us"), "timestamp(3) without time zone", AT, "int64", "io.debezium.time.Timestamp",
     AT_US // 1000),
    (pa.timestamp("us", "UTC"), "timestamp(3)", INSTANT.replace(microsecond=120_000), "string",
     "io.debezium.time.ZonedTimestamp", "2026-01-31T12:00:00.120Z"),
    (pa.timestamp("us", "UTC"), "timestamp", INSTANT.replace(microsecond=0), "string",
     "io.debezium.time.ZonedTimestamp", "2026-01-31T12:00:00Z"),
    (pa.timestamp("us", "UTC"), "timestamp with time zone", INSTANT.replace(microsecond=120_000), "string",
     "io.debezium.time.ZonedTimestamp", "2026-01-31T12:00:00.12Z"),
    (pa.binary(), "varbinary", b"\x00\xff", "bytes", "", "AP8="),
    (pa.binary(), "geometry", bytes.fromhex("0101000020e6100000") + bytes(16), "struct",
     "io.debezium.data.geometry.Geometry", {"wkb": coded(bytes.fromhex("0101000000") + bytes(16)), "srid": 4326}),
    (pa.string(), "json", '{"a": 1}', "string", "io.debezium.data.Json", '{"a": 1}'),
    (pa.string(), "jsonb", "{}", "string", "io.debezium.data.Json", "{}"),
    (pa.string(), "enum('a','it''s') charset latin1", "a", "string", "io.debezium.data.Enum", "a"),
    (pa.string(), "set('a','b')", "a,b", "string", "io.debezium.data.EnumSet", "a,b"),
    (pa.string(), "uuid", "0", "string", "io.debezium.data.Uuid", "0"),
    (pa.string(), "text[]", "{a}", "string", "", "{a}"),
    (pa.string(), "numeric(10,2)[]", "{1.00}", "string", "", "{1.00}"),
    (pa.string(), "varchar charset latin1", "é", "string", "", "é"),
    (pa.bool_(), "boolean", True, "boolean", "", True),
]  # fmt: skip


@pytest.mark.parametrize(("lake", "source", "value", "connect", "name", "expected"), CASES)
def test_a_value_when_its_type_is_known_then_it_is_as_debezium_has_it(
    lake: pa.DataType, source: str, value: object, connect: str, name: str, expected: object
) -> None:
    field = field_of(lake, source)
    (held,) = plain(pa.chunked_array([pa.array([value], lake)]))
    assert (field.type, field.name, repr(field.convert(held))) == (connect, name, repr(expected))


def test_decimals_when_others_are_asked_for_then_they_are_numbers_or_texts() -> None:
    types = ((pa.decimal128(10, 2), "decimal(10,2)", Decimal("1.50")), (pa.string(), "numeric", "1.50"))
    for lake, source, value in types:
        double, text = (field_of(lake, source, of) for of in (Decimals.DOUBLE, Decimals.STRING))
        assert (double.type, double.convert(value), text.type, text.convert(value)) == ("double", 1.5, "string", "1.50")


def test_parameters_when_a_type_has_some_then_the_schema_says_them() -> None:
    labels = field_of(pa.string(), "enum('a','it''s')").schema("mood", optional=True)
    assert labels["parameters"] == {"allowed": "a,it's"} and labels["field"] == "mood" and labels["version"] == 1
    digits = field_of(pa.decimal128(10, 2), "").schema("price", optional=False)
    assert digits["parameters"] == {"scale": "2", "connect.decimal.precision": "10"} and not digits["optional"]


def shaped(columns: dict[str, tuple[pa.DataType, str]], *former: pa.Field, **facts: Any) -> tuple[Shape, pa.Schema]:
    held = pa.schema([*(pa.field(name, type_) for name, (type_, _) in columns.items()), *former])
    layout = Layout("", tuple(columns), ("id",), source_types=tuple(source for _, source in columns.values()), **facts)
    ours = [pa.field("_gsn", pa.int64()), pa.field("_unrepresentable", pa.string()), pa.field("_absent", pa.string())]
    return Shape.of(held, layout), pa.schema([*held, *ours])


def test_a_row_when_values_are_not_there_then_each_has_its_place() -> None:
    columns = {"id": (pa.date32(), "date"), "note": (pa.string(), "text"), "unit%20price": (pa.int64(), "int"),
               "any": (pa.string(), "numeric")}  # fmt: skip
    shape, schema = shaped(columns, pa.field("note~1", pa.int64()), pa.field("gone", pa.string()))
    rows = pa.Table.from_pylist(
        [
            {"id": None, "_gsn": 1, "_unrepresentable": '{"id":"0000-00-00"}', "any": "NaN"},
            {"id": date(1970, 1, 2), "_gsn": 2, "_absent": '["note", "unit%20price"]'},
            {"id": date(1970, 1, 3), "_gsn": 3, "note~1": 7, "gone": "x", "unit%20price": 5},
        ],
        schema=schema,
    )
    zero, partial, earlier = shape.rows(rows)
    assert zero.key == {"id": "0000-00-00"} and zero.values == dict.fromkeys(["id", "note", "unit price", "any"])
    assert zero.unrepresentable == {"id": "0000-00-00", "any": "NaN"}
    assert partial.values["note"] == "__debezium_unavailable_value" and partial.values["unit price"] is None
    assert partial.absent == ("note", "unit price")
    assert (earlier.values["note"], earlier.values["gone"], earlier.values["unit price"]) == (7, "x", 5)
    assert earlier.former == ("note~1", "gone") and shape.fields(earlier.former)["note"].type == "int64"


def test_a_row_when_its_value_is_of_a_time_when_the_type_was_wider_then_it_is_told_as_unrepresentable() -> None:
    columns = {"id": (pa.int64(), "bit(1)"), "flag": (pa.int64(), "bit(1)"), "wide": (pa.int64(), "bit(8)")}
    shape, schema = shaped(columns)
    values = ({"id": 1, "flag": 300, "wide": -1, "_gsn": 1}, {"id": 2, "flag": 1, "wide": 1, "_gsn": 2})
    first, second = shape.rows(pa.Table.from_pylist(list(values), schema=schema))
    assert first.values == {"id": True, "flag": None, "wide": None} and first.key == {"id": True}
    assert first.unrepresentable == {"flag": "300", "wide": "-1"}
    assert second.values["flag"] is True and second.key == {"id": "2"}


def test_a_former_version_of_a_row_when_the_table_has_system_versioning_then_it_is_no_row() -> None:
    shape, schema = shaped(
        {"id": (pa.date32(), "date"), "until": (pa.timestamp("us", "UTC"), "timestamp(6)")}, row_end="until"
    )
    schema = pa.schema([pa.field("_change_type", pa.string()), *schema])
    ended = {"_change_type": "insert", "id": date(1970, 1, 2), "until": datetime(2026, 1, 1, tzinfo=UTC), "_gsn": 1}
    assert list(shape.rows(pa.Table.from_pylist([ended], schema=schema))) == []
