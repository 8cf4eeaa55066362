"""Changes in Avro: byte for byte what Kafka Connect's converter makes of them, and what Avro can't hold is said."""

import base64
import io
import json
import struct
from collections.abc import Iterator
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway

from spark_sink.errors import ExportSchemaRefused, ExportValueRefused
from spark_sink.export.avro import Codec, Codecs
from spark_sink.export.avro_binary import ValueUnfit, write_long, writer_of
from spark_sink.export.avro_files import ContainerFile
from spark_sink.export.envelope import Envelope, JsonLines, Message
from spark_sink.export.fields import UNAVAILABLE, FieldOf, UnsignedBigints, avro_field_of, field_of
from spark_sink.export.rows import Shape
from spark_sink.lake.delta_table import Layout
from spark_sink.work import TableId
from tests.schema_registry import CONVERTERS, java
from tests.spark_sink.test_export_fields import CASES

TABLE = TableId("acme", "shop", "shop", "orders")
NOW_US = 1_769_860_800_123_456
#: Connect's converter of JSON reads no word as a number, no number above int64, and -0.0 as 0.0; that of Avro says of
#: decimals of thousands what Avro's rules do not allow
NOT_OF_CONNECT = ("NaN", "Infinity", "-Infinity", 2**64 - 1, -0.0, "9A==")


def envelope_of(
    columns: dict[str, tuple[pa.DataType, str]],
    fields_of: FieldOf = avro_field_of,
    former: dict[str, pa.DataType] | None = None,
    table: TableId = TABLE,
) -> Envelope:
    """`columns`: those that the table has, of which the first is its key; `former`: by their names in the lake."""
    held = pa.schema([(name, type_) for name, (type_, _) in columns.items()] + list((former or {}).items()))
    words = tuple(source for _, source in columns.values())
    return Envelope(
        table, Shape.of(held, Layout("", tuple(columns), (next(iter(columns)),), source_types=words), fields_of), NOW_US
    )


def messages(envelope: Envelope, columns: dict[str, pa.DataType], *rows: dict[str, Any]) -> list[Message]:
    schema = pa.schema(
        [
            ("_change_type", pa.string()),
            ("_gsn", pa.int64()),
            ("_unrepresentable", pa.string()),
            ("_absent", pa.string()),
            *columns.items(),
        ]
    )
    numbered = [{"_change_type": "insert", "_gsn": number, **row} for number, row in enumerate(rows, 1)]
    return list(envelope.messages(envelope.shape.rows(pa.Table.from_pylist(numbered, schema=schema))))


def of_each_type(fields_of: FieldOf, without: tuple[Any, ...] = ()) -> tuple[Envelope, list[Message]]:
    """A table with a column of each case: its values, nulls, values that are not known, and a delete."""
    cases = [case for case in CASES if case[5] not in without]
    columns = {"id": (pa.int64(), "int"), **{f"c{place}": case[:2] for place, case in enumerate(cases)}}
    envelope = envelope_of(columns, fields_of)
    values = {f"c{place}": case[2] for place, case in enumerate(cases)}
    absent = json.dumps(list(values))
    rows = [{"id": 1, **values}, {"id": 2}, {"id": 3, "_absent": absent}, {"id": 1, **values, "_change_type": "delete"}]
    return envelope, messages(envelope, {name: type_ for name, (type_, _) in columns.items()}, *rows)


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    with java() as running:
        yield running


class Connect:
    """Kafka Connect's converters: of JSON, and of Avro."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._java = gateway.jvm
        self._json = self._java.org.apache.kafka.connect.json.JsonConverter()
        self._json.configure({"schemas.enable": "true"}, False)
        avro = getattr(self._java, f"{CONVERTERS}.avro.AvroData")
        self._avro = avro(getattr(self._java, f"{CONVERTERS}.avro.AvroDataConfig")({}))

    def schema(self, text: str) -> Any:
        return self._java.org.apache.avro.Schema.Parser().parse(text)

    def to_avro(self, line: str) -> tuple[Any, bytes]:
        """Of a message as JSON with its schema."""
        found = self._json.toConnectData("topic", line.encode())
        schema, record = (
            self._avro.fromConnectSchema(found.schema()),
            self._avro.fromConnectData(found.schema(), found.value()),
        )
        to = self._java.java.io.ByteArrayOutputStream()
        encoder = self._java.org.apache.avro.io.EncoderFactory.get().binaryEncoder(to, None)
        self._java.org.apache.avro.generic.GenericDatumWriter(schema).write(record, encoder)
        encoder.flush()
        return schema, bytes(to.toByteArray())

    def record(self, schema: str, encoded: bytes) -> Any:
        decoder = self._java.org.apache.avro.io.DecoderFactory.get().binaryDecoder(encoded, None)
        record = self._java.org.apache.avro.generic.GenericDatumReader(self.schema(schema)).read(None, decoder)
        assert decoder.isEnd()
        return record

    def to_json(self, schema: str, encoded: bytes) -> Any:
        found = self._avro.toConnectData(self.schema(schema), self.record(schema, encoded))
        return json.loads(self._json.fromConnectData("topic", found.schema(), found.value()))


def test_a_message_in_avro_when_java_converts_the_one_in_json_then_both_are_the_same_byte_for_byte(
    gateway: JavaGateway,
) -> None:
    connect = Connect(gateway)
    envelope, found = of_each_type(avro_field_of, NOT_OF_CONNECT)
    of_json, lines = of_each_type(field_of, NOT_OF_CONNECT)
    in_json = JsonLines(of_json, schema=True)
    key, value = Codec.of(TABLE, envelope.key_schema()), Codec.of(TABLE, envelope.value_schema())
    assert [message.op for message in found] == ["c", "c", "c", "d", ""] and found[-1].value is None
    for message, line in zip(found, lines, strict=True):
        parts = [(key, message.key, in_json.key(line)), (value, message.value, in_json.value(line))]
        for codec, values, text in parts:
            if values is None:
                assert text is None
                continue
            ours = codec.encode(TABLE, message.gsn, values)
            schema, theirs = connect.to_avro(text)
            assert connect.schema(codec.schema).equals(schema), f"{codec.schema}\n{schema.toString()}"
            assert ours == theirs
            assert connect.to_json(codec.schema, ours) == json.loads(text)


def test_a_file_when_java_reads_it_then_it_has_each_message(gateway: JavaGateway, tmp_path: Path) -> None:
    connect = Connect(gateway)
    envelope, found = of_each_type(avro_field_of, NOT_OF_CONNECT)
    codec, values = Codec.of(TABLE, envelope.value_schema()), [each.value for each in found if each.value is not None]
    for goes_on in (False, True):  # which ends a block
        file = ContainerFile(codec.schema, bytes(range(16)), tmp_path / "a.avro", goes_on)
        for value in values:
            file.write(codec.encode(TABLE, 1, value))
        file.close()
    java_file = gateway.jvm.java.io.File(str(tmp_path / "a.avro"))
    reader = gateway.jvm.org.apache.avro.file.DataFileReader(
        java_file, gateway.jvm.org.apache.avro.generic.GenericDatumReader()
    )
    read = [str(each.toString()) for each in reader]
    reader.close()
    expected = [connect.record(codec.schema, codec.encode(TABLE, 1, value)).toString() for value in values]
    assert read == expected * 2 and len(read) == 8


def as_read(connect: dict[str, Any], value: Any) -> Any:
    """What stands in JSON, as a reader of Avro gives it."""
    if value is None:
        return None
    kind = connect["type"]
    if kind == "struct":
        return {field["field"]: as_read(field, value.get(field["field"])) for field in connect["fields"]}
    if kind == "bytes":
        number = base64.b64decode(value)
        scale = int(connect.get("parameters", {}).get("scale", -1))
        return (
            Decimal(int.from_bytes(number, "big", signed=True)).scaleb(-scale, Context(prec=99))
            if scale >= 0
            else number
        )
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", float(value)))[0]
    return float(value) if kind == "double" else value


def read(codec: Codec, encoded: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(encoded), json.loads(codec.schema), None)


def test_a_message_in_avro_when_it_is_read_then_its_values_are_those_in_json_and_what_is_too_large_is_told() -> None:
    (envelope, found), (of_json, lines) = of_each_type(avro_field_of), of_each_type(field_of)
    schema, codec = of_json.value_schema(), Codec.of(TABLE, envelope.value_schema())
    for message, line in zip(found, lines, strict=True):
        if message.value is None or line.value is None:
            assert message.value is line.value
            continue
        expected = as_read(schema, json.loads(json.dumps(line.value)))
        for image in filter(None, (expected["before"], expected["after"])):
            if image["c7"] == 2**64 - 1:
                image["c7"] = None
                expected["source"]["unrepresentable"] = message.value["source"]["unrepresentable"]
        assert repr(read(codec, codec.encode(TABLE, message.gsn, message.value))) == repr(expected)
    unknown = {name: value for name, value in found[2].value["after"].items() if value is not None and name != "id"}
    assert set(map(type, unknown.values())) == {str, bytes}
    assert {value if isinstance(value, str) else value.decode() for value in unknown.values()} == {UNAVAILABLE}
    (first, *_, last, _) = (json.loads(each.value["source"]["unrepresentable"] or "{}") for each in found if each.value)
    assert first == {"after": {"c7": str(2**64 - 1)}} and last == {}


def test_a_whole_number_when_it_is_above_its_type_then_it_is_null_and_told() -> None:
    columns = {
        "id": (pa.int64(), "int"),
        "small": (pa.int64(), "tinyint"),
        "wide": (pa.decimal128(20, 0), "bigint unsigned"),
    }
    types = {name: type_ for name, (type_, _) in columns.items()}
    for limit in (2**15 - 1, -(2**15)):
        rows = [{"id": 1, "small": limit}, {"id": 1, "small": limit + (1 if limit > 0 else -1), "wide": Decimal(2**63)}]
        envelope = envelope_of(columns)
        codec = Codec.of(TABLE, envelope.value_schema())
        fits, not_so = (
            read(codec, codec.encode(TABLE, 1, each.value)) for each in messages(envelope, types, *rows) if each.value
        )
        assert fits["after"]["small"] == limit and fits["source"]["unrepresentable"] is None
        told = {"small": str(rows[1]["small"]), "wide": str(2**63)}
        assert not_so["after"] == {"id": 1, "small": None, "wide": None}
        assert json.loads(not_so["source"]["unrepresentable"]) == {"after": told}


def test_an_unsigned_bigint_when_decimals_are_asked_for_then_all_fit() -> None:
    columns = {"id": (pa.decimal128(20, 0), "bigint unsigned")}
    envelope = envelope_of(columns, partial(avro_field_of, bigints=UnsignedBigints.PRECISE))
    (message,) = messages(envelope, {"id": pa.decimal128(20, 0)}, {"id": Decimal(2**64 - 1)})
    codec = Codec.of(TABLE, envelope.key_schema())
    assert message.key and read(codec, codec.encode(TABLE, 1, message.key)) == {"id": Decimal(2**64 - 1)}
    in_json = envelope_of(columns, partial(field_of, bigints=UnsignedBigints.PRECISE))
    assert in_json.shape.fields()["id"].name == "org.apache.kafka.connect.data.Decimal"


def test_a_key_when_avro_can_not_hold_it_then_says_which_and_what_to_do() -> None:
    columns = {"id": (pa.decimal128(20, 0), "bigint unsigned")}
    envelope = envelope_of(columns)
    (message,) = messages(envelope, {"id": pa.decimal128(20, 0)}, {"id": Decimal(2**63)})
    for schema, values in ((envelope.key_schema(), message.key), (envelope.value_schema(), message.value)):
        assert values is not None
        with pytest.raises(ExportValueRefused, match="--unsigned-bigints precise") as refused:
            Codec.of(TABLE, schema).encode(TABLE, message.gsn, values)
        assert "column id" in refused.value.found and str(2**63) not in str(refused.value)
        assert (refused.value.table, refused.value.position) == ("orders", "gsn 1")


def test_names_when_avro_has_no_such_then_they_are_adjusted_as_debezium_does() -> None:
    table = TableId("acme", "shop-eu", "2026", "order lines")
    columns = {
        "1st": (pa.int64(), "int"),
        "unit price": (pa.string(), "text"),
        "größe": (pa.int64(), "int"),
        "_ok": (pa.bool_(), "boolean"),
    }
    envelope = envelope_of(columns, table=table)
    (message,) = messages(
        envelope, {name: type_ for name, (type_, _) in columns.items()}, {"1st": 1, "unit price": "x", "größe": 3}
    )
    codec = Codec.of(table, envelope.value_schema())
    schema = json.loads(codec.schema)
    assert (schema["namespace"], schema["name"]) == ("shop_eu._2026.order_lines", "Envelope")
    assert schema["connect.name"] == "shop_eu._2026.order_lines.Envelope"
    assert message.value is not None
    found = read(codec, codec.encode(table, 1, message.value))
    assert found["after"] == {"_1st": 1, "unit_price": "x", "gr__e": 3, "_ok": None}
    clashing = envelope_of({"id": (pa.int64(), "int"), "a-b": (pa.int64(), "int"), "a b": (pa.int64(), "int")})
    with pytest.raises(ExportSchemaRefused, match="'a-b' and 'a b' are both 'a_b'"):
        Codec.of(TABLE, clashing.value_schema())


def test_columns_when_they_are_former_ones_then_they_stay_in_the_schema_unless_another_has_their_name() -> None:
    former = {"gone": pa.string(), "old": pa.int64(), "note~1": pa.int64()}
    envelope = envelope_of({"id": (pa.int64(), "int"), "note": (pa.string(), "text")}, former=former)
    asked: list[tuple[str, ...]] = []

    def make(of: tuple[str, ...]) -> Codec:
        asked.append(of)
        return Codec.of(TABLE, envelope.value_schema(of))

    codecs = Codecs(envelope, make)
    types = {"id": pa.int64(), "note": pa.string(), **former}
    rows = [{"note~1": 7}, {"note~1": 8, "gone": "x"}, {"gone": "y"}, {"note": "text", "old": 1}, {"note": "more"}]
    found = []
    for message in messages(envelope, types, *({"id": number, **row} for number, row in enumerate(rows))):
        assert message.value is not None
        codec = codecs.of(message.former)
        found.append(read(codec, codec.encode(TABLE, message.gsn, message.value))["after"])
    assert asked == [("note~1",), ("gone", "note~1"), ("gone",), ("gone", "old")]
    assert found == [
        {"id": 0, "note": 7},
        {"id": 1, "note": 8, "gone": "x"},
        {"id": 2, "note": None, "gone": "y"},
        {"id": 3, "note": "text", "gone": None, "old": 1},
        {"id": 4, "note": "more", "gone": None, "old": None},
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("int64", value) for value in (2**63, -(2**63) - 1, 2**200, "1", 1.0, None)),
        *(("int32", value) for value in (2**31, -(2**31) - 1, None)),
        *(("boolean", value) for value in (None, 2, "true")),
        *(("string", value) for value in (None, 1, "\ud800")),
        *(("bytes", value) for value in (None, "text", 5)),
        *(("float", value) for value in (None, 1e39, "x")),
    ],
)
def test_a_value_when_it_is_none_of_its_type_then_nothing_is_encoded(kind: str, value: object) -> None:
    fields = [{"type": kind, "optional": False, "field": "a"}]
    inner = {"type": "struct", "optional": True, "fields": fields, "field": "image"}
    outer = {"type": "struct", "optional": False, "fields": [inner]}
    with pytest.raises(ValueUnfit, match=r"^a$"):
        writer_of(outer)(bytearray(), {"image": {"a": value}})


@pytest.mark.parametrize("number", [0, -1, 63, -64, 64, -65, 2**31, 2**63 - 1, -(2**63)])
def test_a_whole_number_when_it_is_encoded_then_it_is_read_again(number: int) -> None:
    encoded = bytearray()
    write_long(encoded, number)
    assert fastavro.schemaless_reader(io.BytesIO(encoded), "long", None) == number
