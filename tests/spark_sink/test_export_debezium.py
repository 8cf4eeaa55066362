"""An export read by Debezium's own Java, as its users configure it: consumers of Debezium need no change.

Two of its readers take random changes of a lake: `ExtractNewRecordState`, the transformation that sink connectors of
Kafka Connect are configured with, over the messages with their schema; and the deserialiser `DebeziumSerdes`, which
programs of Kafka Streams have, over those without. Applied by key, what they give is the lake's current state.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway

from spark_sink.export.outputs import FolderOutput, Form
from spark_sink.reading import current_state
from tests.schema_registry import java
from tests.spark_sink.landing import Table, Workload, delete, insert, table_id, update
from tests.spark_sink.test_export import Lake, export, held

__all__ = ["held"]

CUTS = 12
TOPIC = "shop.shop.orders"
WIDE = Table(
    "wide",
    {"id": pa.int64(), "day": pa.date32(), "price": pa.decimal128(12, 2), "note": pa.string(), "flag": pa.bool_()},
    source_types={"id": "bigint", "day": "date", "price": "decimal(12,2)", "note": "text", "flag": "bit(1)"},
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    with java() as running:
        yield running


def pairs(folder: Path) -> list[tuple[str, str]]:
    """Key and value of each message, as they are written."""
    texts = [file.read_text() for file in sorted(folder.rglob("*.jsonl"))]
    found = [line.partition("\t") for text in texts for line in text.splitlines()]
    return [(key, value) for key, _, value in found]


class SinkConnector:
    """What one is given by Kafka Connect: records by JsonConverter and Debezium's transformation."""

    def __init__(self, gateway: JavaGateway, **settings: str) -> None:
        self._java = gateway.jvm
        self._converters = [self._converter(is_key=True), self._converter(is_key=False)]
        self._plain = self._java.org.apache.kafka.connect.json.JsonConverter()
        self._plain.configure({"schemas.enable": "false"}, False)
        self._transformation = self._java.io.debezium.transforms.ExtractNewRecordState()
        self._transformation.configure({name.replace("_", "."): value for name, value in settings.items()})

    def _converter(self, *, is_key: bool) -> Any:
        made = self._java.org.apache.kafka.connect.json.JsonConverter()
        made.configure({"schemas.enable": "true"}, is_key)
        return made

    def read(self, key: str, value: str) -> tuple[Any, Any] | None:
        """Key and row; None: the transformation leaves the message out."""
        kept, held = (
            converter.toConnectData(TOPIC, None if text == "null" else text.encode())
            for converter, text in zip(self._converters, (key, value), strict=True)
        )
        record = self._java.org.apache.kafka.connect.sink.SinkRecord(
            TOPIC, 0, kept.schema(), kept.value(), held.schema(), held.value(), 0
        )
        found = self._transformation.apply(record)
        if found is None:
            return None
        return self._said(found.keySchema(), found.key()), self._said(found.valueSchema(), found.value())

    def _said(self, schema: Any, value: Any) -> Any:
        return None if value is None else json.loads(bytes(self._plain.fromConnectData(TOPIC, schema, value)))


class StreamsProgram:
    """Debezium's deserialiser, of the row before and of the row after."""

    def __init__(self, gateway: JavaGateway) -> None:
        node = gateway.jvm.java.lang.Class.forName("com.fasterxml.jackson.databind.JsonNode")
        self._serdes = {}
        for field in ("before", "after"):
            serde = gateway.jvm.io.debezium.serde.DebeziumSerdes.payloadJson(node)
            serde.configure({"from.field": field, "unknown.properties.ignored": "true"}, False)
            self._serdes[field] = serde

    def row(self, field: str, value: str) -> Any:
        found = self._serdes[field].deserializer().deserialize(TOPIC, value.encode())
        return None if found is None else json.loads(found.toString())


@pytest.mark.parametrize("seed", range(2))
def test_an_export_when_debeziums_transformation_reads_it_then_rows_by_key_are_the_current_state(
    gateway: JavaGateway, held: Lake, tmp_path: Path, seed: int
) -> None:
    work = Workload(seed)
    output = FolderOutput(tmp_path / "out", Form(keys=True, schema=True))
    connector = SinkConnector(gateway, delete_tombstone_handling_mode="tombstone")
    for _ in range(CUTS):
        work.cut(held.writer)
        held.follow()
        export(held, output)
    rows: dict[int, Any] = {}
    deletes = 0
    for key, value in pairs(tmp_path / "out"):
        found = connector.read(key, value)
        if found is None:
            continue
        if found[1] is None:
            deletes += rows.pop(found[0]["id"], None) is not None
        else:
            rows[found[0]["id"]] = found[1]
    expected = current_state(str(held.folder), table_id(Workload.ORDERS)).to_pylist()
    assert sorted((row["id"], row["note"]) for row in rows.values()) == sorted((r["id"], r["note"]) for r in expected)
    assert rows
    assert deletes


def test_an_export_when_debeziums_deserialiser_reads_it_then_rows_before_and_after_have_their_values(
    gateway: JavaGateway, held: Lake, tmp_path: Path
) -> None:
    first = {"id": 2**62, "day": 19_000, "price": None, "note": 'ä\n"', "flag": True}
    second = {**first, "day": None, "note": None, "flag": False}
    held.cut((WIDE, [insert(**first), update(first, second), delete(**second)]))
    export(held, FolderOutput(tmp_path / "out", Form(keys=True)), table_id(WIDE))
    program = StreamsProgram(gateway)
    found = [(program.row("before", value), program.row("after", value)) for _, value in pairs(tmp_path / "out")]
    assert found == [(None, first), (first, second), (second, None), (None, None)]


def test_an_update_when_debeziums_transformation_adds_its_facts_then_they_are_the_exports(
    gateway: JavaGateway, held: Lake, tmp_path: Path
) -> None:
    row = {"id": 1, "day": 19_000, "price": None, "note": "a", "flag": True}
    held.cut((WIDE, [insert(**row), update(row, {**row, "note": "b"}), delete(**{**row, "note": "b"})]))
    export(held, FolderOutput(tmp_path / "out", Form(keys=True, schema=True)), table_id(WIDE))
    connector = SinkConnector(gateway, add_fields="op,source.table,source.db", delete_tombstone_handling_mode="rewrite")
    found = [connector.read(key, value) for key, value in pairs(tmp_path / "out")]
    said = [one[1] and {name: value for name, value in one[1].items() if name.startswith("__")} for one in found if one]
    facts = {"__source_table": "wide", "__source_db": "shop", "__deleted": "false"}
    expected = [{**facts, "__op": "c"}, {**facts, "__op": "u"}, {**facts, "__op": "d", "__deleted": "true"}]
    assert [one for one in said if one] == expected
