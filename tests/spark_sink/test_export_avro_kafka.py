"""An export in Avro to a real Kafka broker with a real schema registry, read by Confluent's deserializer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_sink import export_command
from spark_sink.errors import ExportSchemaRefused, ExportValueRefused
from spark_sink.export.avro import AvroMessages
from spark_sink.export.envelope import JsonLines
from spark_sink.export.feed import Feed
from spark_sink.export.fields import avro_field_of, field_of
from spark_sink.export.kafka import KafkaOutput
from spark_sink.export.outputs import Form
from spark_sink.export.position import BEGINNING
from spark_sink.export.registry import Registry
from tests.kafka_broker import KafkaBroker
from tests.schema_registry import CONVERTERS, SchemaRegistry, java
from tests.spark_sink.killing import Killed
from tests.spark_sink.landing import Table, Writer, altered, delete, insert, truncate, update
from tests.spark_sink.test_export import ID, ORDERS, Lake, row
from tests.spark_sink.test_export_avro import NOT_OF_CONNECT, as_read, of_each_type
from tests.spark_sink.test_export_kafka import QUIET, Kills, committed, make_topic
from tests.spark_sink.test_export_registry import patient  # noqa: F401  (a fixture)

TOPIC = "shop.shop.orders"
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    running = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    make_topic(running, TOPIC, 1, "delete")
    yield running
    running.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    running = SchemaRegistry(tmp_path_factory.mktemp("registry"))
    yield running
    running.close()


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


class Reader:
    """Confluent's, which asks the registry for each id."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._read = AvroDeserializer(client)

    def value(self, encoded: bytes | None, topic: str = TOPIC) -> Any:
        assert encoded is None or encoded[0] == 0
        return encoded and self._read(encoded, SerializationContext(topic, MessageField.VALUE))

    def committed(self, broker: KafkaBroker, topic: str = TOPIC) -> list[tuple[Any, Any]]:
        return committed(broker, topic, self.value)


@pytest.fixture
def reader(registry: SchemaRegistry) -> Iterator[Reader]:
    with SchemaRegistryClient({"url": registry.url, "timeout": 120}) as client:
        yield Reader(client)


def export(held: Lake, broker: KafkaBroker, registry: SchemaRegistry, name: str) -> None:
    """All that is new, as one run of the command."""
    to = KafkaOutput(broker.servers, name, Form(), QUIET, Registry(registry.url))
    feed = Feed(str(held.folder), [ID], position=to.position() or BEGINNING, fields=avro_field_of)
    while (step := feed.next()) is not None:
        to.write(step)
        feed.position = step.position


def test_each_type_when_confluents_deserializer_reads_it_then_it_is_as_in_json(
    registry: SchemaRegistry, reader: Reader
) -> None:
    (envelope, found), (of_json, lines) = (
        of_each_type(avro_field_of, (2**64 - 1,)),
        of_each_type(field_of, (2**64 - 1,)),
    )
    encoder = AvroMessages(envelope, "types", Registry(registry.url))
    for message, line in zip(found, lines, strict=True):
        key, value = encoder.key(message), encoder.value(message)
        assert repr(reader.value(key)) == repr(as_read(of_json.key_schema(), line.key))
        assert repr(reader.value(value)) == repr(as_read(of_json.value_schema(), line.value))
    assert [len(registry.versions(f"types-{part}")) for part in ("key", "value")] == [1, 1]


def test_each_type_when_connects_converter_reads_it_then_it_is_the_json_with_its_schema(
    registry: SchemaRegistry,
) -> None:
    envelope, found = of_each_type(avro_field_of, NOT_OF_CONNECT)
    of_json, lines = of_each_type(field_of, NOT_OF_CONNECT)
    encoder, in_json = AvroMessages(envelope, "connect", Registry(registry.url)), JsonLines(of_json, schema=True)
    with java() as gateway:
        of_registry = getattr(gateway.jvm, f"{CONVERTERS}.AvroConverter")()
        address = {"apicurio.registry.url": registry.url.replace("ccompat/v7", "registry/v2")}
        confluents = {"apicurio.registry.as-confluent": "true", "apicurio.registry.use-id": "contentId"}
        of_registry.configure({**address, **confluents}, False)
        to_json = gateway.jvm.org.apache.kafka.connect.json.JsonConverter()
        to_json.configure({"schemas.enable": "true"}, False)
        for message, line in zip(found, lines, strict=True):
            if (value := encoder.value(message)) is not None:
                read = of_registry.toConnectData("connect", value)
                text = to_json.fromConnectData("connect", read.schema(), read.value())
                assert json.loads(text) == json.loads(in_json.value(line) or "")
        of_registry.close()


def test_an_export_in_avro_when_it_is_killed_between_any_two_steps_then_each_change_is_committed_once(
    held: Lake, broker: KafkaBroker, registry: SchemaRegistry, reader: Reader
) -> None:
    held.cut((ORDERS, [insert(**row(0))]))
    export(held, broker, registry, "killed")
    kills = [("begin_transaction", 1, True), ("produce", 2, True)]
    kills += [("commit_transaction", 1, False), ("commit_transaction", 1, True)]
    for number, (name, call, done) in enumerate(kills, 1):
        held.cut((ORDERS, [insert(**row(number)), insert(**row(100 + number))]))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            Kills(patched, name, call, done=done)
            export(held, broker, registry, "killed")
    held.cut((ORDERS, [update(row(0), row(0, "b")), delete(**row(0, "b"))]), truncate(ORDERS))
    export(held, broker, registry, "killed")
    found = reader.committed(broker)
    numbers = [0, *(each for number in range(1, 1 + len(kills)) for each in (number, 100 + number))]
    assert [(key and key["id"], value and value["op"]) for key, value in found] == [
        *((number, "c") for number in numbers),
        *[(0, "u"), (0, "d"), (0, None), (None, "t")],
    ]
    assert found[-4][1]["before"]["note"] is None and found[-4][1]["after"]["note"] == "b"
    assert [len(registry.versions(f"{TOPIC}-{part}")) for part in ("key", "value")] == [1, 1]


def run(monkeypatch: pytest.MonkeyPatch, held: Lake, broker: KafkaBroker, registry: SchemaRegistry, *more: str) -> int:
    """The command."""
    where = ["acme/shop", "--lake", str(held.folder), "--kafka", broker.servers, "--kafka-option", "log_level=0"]
    monkeypatch.setattr("sys.argv", ["menura export", *where, "--format", "avro", "--registry", registry.url, *more])
    return export_command.main()


def test_the_command_when_a_key_does_not_fit_then_its_table_is_left_out_and_the_option_lets_it_out(
    held: Lake,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counters = Table("counters", {"id": pa.uint64()}, source_types={"id": "bigint unsigned"})
    others = Table("others", {"id": pa.int32()})
    held.cut((counters, [insert(id=1), insert(id=2**63)]), (others, [insert(id=1)]))
    assert run(monkeypatch, held, broker, registry, "--name", "unfit") == ExportValueRefused.exit_code
    said = capsys.readouterr().err
    assert said.count("EXPORT_VALUE_REFUSED") == 1 and "--unsigned-bigints precise" in said and str(2**63) not in said
    assert reader.committed(broker, "shop.shop.counters") == []
    precise = ("--unsigned-bigints", "precise")
    assert run(monkeypatch, held, broker, registry, "--name", "unfit", *precise) == 0, capsys.readouterr().err
    assert [key["id"] for key, _ in reader.committed(broker, "shop.shop.counters")] == [1, 2**63]
    assert [key["id"] for key, _ in reader.committed(broker, "shop.shop.others")] == [1]


def test_the_command_when_columns_change_then_the_schemas_do_and_one_that_is_refused_leaves_its_table_out(
    held: Lake,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_again() -> int:
        return run(monkeypatch, held, broker, registry, "--name", "evolving")

    def visits(**columns: tuple[pa.DataType, str]) -> Table:
        types = {name: type_ for name, (type_, _) in columns.items()}
        return Table("visits", types, source_types={name: source for name, (_, source) in columns.items()})

    narrow, wide = visits(id=(pa.int32(), "int")), visits(id=(pa.int32(), "int"), at=(pa.int64(), "bigint"))
    other = visits(id=(pa.int32(), "int"), at=(pa.int32(), "bit(1)"))
    events, topic, subject = Table("events", {"id": pa.int32()}), "shop.shop.visits", "shop.shop.visits-value"
    held.cut((narrow, [insert(id=1)]), (events, [insert(id=1)]))
    assert run_again() == 0, capsys.readouterr().err
    registry.set_compatibility("BACKWARD", subject)
    held.cut((wide, [insert(id=2, at=5)]))
    assert run_again() == 0, capsys.readouterr().err
    held.cut(altered(other, types={"at": "bit(1)"}))
    held.cut((other, [insert(id=3, at=1)]), (events, [insert(id=2)]))
    for _ in range(2):
        assert run_again() == ExportSchemaRefused.exit_code
        said = capsys.readouterr().err
        assert said.count("EXPORT_SCHEMA_REFUSED") == 1 and subject in said and "visits is left out" in said
    assert [value["after"] for _, value in reader.committed(broker, topic)] == [{"id": 1}, {"id": 2, "at": 5}]
    assert [key["id"] for key, _ in reader.committed(broker, "shop.shop.events")] == [1, 2]
    registry.set_compatibility("NONE", subject)
    assert run_again() == 0, capsys.readouterr().err
    (*_, (_, last)) = reader.committed(broker, topic)
    assert last["after"] == {"id": 3, "at": True} and len(reader.committed(broker, topic)) == 3
    assert [len(each["schema"]["fields"][0]["type"][1]["fields"]) for each in registry.versions(subject)] == [1, 2, 2]
