"""Pipes of one file to a real Kafka broker, a real schema registry and a real MySQL or MariaDB, beside files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient

from spark_sink.errors import ExportOutputFailed, ExportTaken
from spark_sink.export import kafka
from tests.kafka_broker import KafkaBroker
from tests.schema_registry import SchemaRegistry
from tests.servers import Server
from tests.spark_sink.landing import delete, insert, update
from tests.spark_sink.test_export import ORDERS, Lake, held, lines, row
from tests.spark_sink.test_export_avro_kafka import TOPIC, Reader, registry
from tests.spark_sink.test_export_kafka import broker, committed, output
from tests.spark_sink.test_mysql_tables import DATABASE, expected, rows, target
from tests.spark_sink.test_pipes import FILES, run, write
from tests.stack import wait_for

__all__ = ["broker", "held", "registry", "target"]

TO_KAFKA = """
[[pipe]]
name = "json"
tables = ["acme/shop"]
producer = "kafka"
from = "state"
options = { brokers = "BROKERS", settings = { log_level = "env:QUIET" } }
"""
TO_MYSQL = """
[[pipe]]
name = "reporting"
tables = ["acme/shop/shop/*"]
producer = "mysql"
[pipe.options]
host = "HOST"
port = "PORT"
user = "USER"
database = "piped"
password = "file:FOLDER/password"
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIET", "0")


@pytest.fixture
def reader(registry: SchemaRegistry) -> Iterator[Reader]:
    with SchemaRegistryClient({"url": registry.url, "timeout": 120}) as client:
        yield Reader(client)


@pytest.mark.needs_setup
def test_pipes_when_one_file_names_files_kafka_and_a_database_then_each_has_each_change_once(
    held: Lake,
    broker: KafkaBroker,
    target: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target.run(
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, amount BIGINT UNSIGNED, note TEXT)",
        "DROP USER IF EXISTS pipe",
        "CREATE USER pipe IDENTIFIED BY 'a secret of pipes'",
        f"GRANT ALL ON {DATABASE}.* TO pipe",
    )
    (tmp_path / "password").write_text("a secret of pipes\n")
    of_kafka = TO_KAFKA.replace("BROKERS", broker.servers).replace('"json"', f'"json-{target.flavor}"')
    of_mysql = TO_MYSQL.replace("HOST", target.host).replace("PORT", str(target.port)).replace("USER", "pipe")
    file = write(held, tmp_path, FILES, of_kafka, of_mysql)
    before = len(committed(broker))
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2)), delete(**row(2))]))
    assert run(monkeypatch, file) == 0, capfd.readouterr().err
    held.cut((ORDERS, [update(row(1), row(1, "b")), insert(**row(3))]))
    for _ in range(2):
        assert run(monkeypatch, file) == 0, capfd.readouterr().err
    found = [(key["id"], value["op"]) for key, value in committed(broker)[before:] if value]
    assert found == [(1, "r"), (1, "u"), (3, "c")]
    assert [(key["id"], value["op"]) for key, value in lines(tmp_path / "out") if value] == [
        (1, "c"), (2, "c"), (2, "d"), (1, "u"), (3, "c")]  # fmt: skip
    assert rows(target, ORDERS) == expected(held, ORDERS)
    assert run(monkeypatch, file, "--status") == 0
    said = capfd.readouterr().out
    assert said.count("not running (up to date)  acme/shop:2") == 3 and "a secret" not in said


@pytest.mark.needs_setup
def test_a_pipe_when_its_broker_is_away_then_the_others_go_on_and_with_the_broker_it_has_all_that_came(
    held: Lake,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kafka, "ANSWER_SECONDS", 1)
    held.cut((ORDERS, [insert(**row(1))]))
    away = TO_KAFKA.replace("BROKERS", "127.0.0.1:1").replace('"json"', '"away"') + 'on_error = "stop"\n'
    assert run(monkeypatch, write(held, tmp_path, FILES, away)) == ExportOutputFailed.exit_code
    assert [key["id"] for key, _ in lines(tmp_path / "out")] == [1]
    said = capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("QUIET", "0")
    before = len(committed(broker))
    there = away.replace("127.0.0.1:1", broker.servers)
    assert run(monkeypatch, write(held, tmp_path, FILES, there)) == 0, said
    assert [key["id"] for key, _ in committed(broker)[before:]] == [1]


@pytest.mark.needs_setup
def test_a_pipe_when_an_export_elsewhere_takes_its_name_then_it_stops_and_does_not_take_it_back(
    held: Lake,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    name, real, taken = "taken-away", kafka.KafkaOutput.write, list[str]()

    def write_late(self: kafka.KafkaOutput, step: kafka.Step) -> None:
        if not taken:
            taken.append(name)
            output(broker, name).position()  # which begins with the name
        real(self, step)

    monkeypatch.setattr(kafka.KafkaOutput, "write", write_late)
    file = write(held, tmp_path, TO_KAFKA.replace("BROKERS", broker.servers).replace('"json"', f'"{name}"'))
    assert run(monkeypatch, file) == ExportTaken.exit_code
    assert caplog.text.count("EXPORT_TAKEN") == 1 and "stopped" in caplog.text
    assert run(monkeypatch, file) == 0


@pytest.mark.needs_setup
def test_an_export_when_its_producer_knows_that_its_name_is_taken_before_a_message_then_says_so_too(
    held: Lake, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    name, real, taken = "taken-before", kafka.KafkaOutput._send, list[str]()

    def refuses(producer: Producer) -> bool:
        try:
            producer.produce("other", b"")
        except KafkaException as refused:
            return bool(refused.args[0].code() == KafkaError._FATAL)
        return False

    def send(self: kafka.KafkaOutput, *message: Any, **named: Any) -> None:
        if not taken:
            taken.append(name)
            output(broker, name).position()
            real(self, *message, **named)
            wait_for("the broker to have refused it", lambda: refuses(self._producer))
        real(self, *message, **named)

    monkeypatch.setattr(kafka.KafkaOutput, "_send", send)
    file = write(held, tmp_path, TO_KAFKA.replace("BROKERS", broker.servers).replace('"json"', f'"{name}"'))
    assert run(monkeypatch, file) == ExportTaken.exit_code
    assert caplog.text.count("EXPORT_TAKEN") == 1


@pytest.mark.needs_setup
def test_a_pipe_in_avro_when_a_registry_is_named_then_its_messages_are_read_by_it(
    held: Lake,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    reader: Reader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    held.cut((ORDERS, [insert(**row(7))]))
    in_avro = TO_KAFKA.replace('"BROKERS"', f'"{broker.servers}", registry = "{registry.url}"')
    before = len(committed(broker, TOPIC, len))
    file = write(held, tmp_path, in_avro.replace('"json"', '"avro"'), 'format = "avro"\n')
    assert run(monkeypatch, file) == 0, capfd.readouterr().err
    with monkeypatch.context():
        found = committed(broker, TOPIC, lambda data: reader.value(data) if data[:1] == b"\0" else None)[before:]
    assert [(key["id"], value["op"]) for key, value in found] == [(7, "r")]
