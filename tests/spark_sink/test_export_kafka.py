"""An export to a real Kafka broker: each change once for who reads committed messages."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from spark_sink import export_command
from spark_sink.errors import ExportOutputFailed, SinkSettingInvalid
from spark_sink.export import kafka
from spark_sink.export.feed import Feed, Step
from spark_sink.export.kafka import KafkaOutput
from spark_sink.export.outputs import Form
from spark_sink.export.position import BEGINNING
from spark_sink.export.rows import Row
from spark_sink.work import TableId
from tests.kafka_broker import KafkaBroker
from tests.spark_sink.killing import Killed
from tests.spark_sink.landing import Table, Writer, delete, insert, table_id, truncate, update
from tests.spark_sink.test_export import ID, ORDERS, Lake, row
from tests.stack import wait_for


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    running = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    make_topic(running, "shop.shop.orders", 1, "delete")
    yield running
    running.close()


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


#: librdkafka's settings
QUIET = {"log_level": "0"}


def output(
    broker: KafkaBroker, name: str, *, schema: bool = False, options: Mapping[str, str] | None = None
) -> KafkaOutput:
    return KafkaOutput(broker.servers, name, Form(schema=schema), {**QUIET, **(options or {})})


def make_topic(broker: KafkaBroker, name: str, partitions: int, policy: str) -> None:
    topic = NewTopic(name, num_partitions=partitions, config={"cleanup.policy": policy})
    admin = AdminClient({"bootstrap.servers": broker.servers, **QUIET})
    admin.create_topics([topic])[name].result()
    # the broker hears of it from the controller
    wait_for(f"topic {name}", lambda: name in admin.list_topics(timeout=60).topics)


def failing(step: Step, fails: Callable[[], object]) -> Step:
    """The same; behind the first row `fails` is called."""
    ((of,),) = step.sources

    def rows() -> Iterator[Row]:
        first, *others = of.rows()
        yield first
        fails()
        yield from others

    return Step([[replace(of, rows=rows)]], step.position)


def first_step(held: Lake, table: TableId = ID) -> Step:
    step = Feed(str(held.folder), [table]).next()
    assert step is not None
    return step


def export(held: Lake, to: KafkaOutput, *tables: TableId) -> None:
    """All that is new, as one run of the command."""
    feed = Feed(str(held.folder), tables or [ID], position=to.position() or BEGINNING)
    while (step := feed.next()) is not None:
        to.write(step)
        feed.position = step.position


def committed(
    broker: KafkaBroker, topic: str = "shop.shop.orders", read: Callable[[bytes], Any] = json.loads
) -> list[tuple[Any, Any]]:
    """Each message's key and value; a transaction's are there a moment after its commit."""
    settings = {"bootstrap.servers": broker.servers, "group.id": "test", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    # whoever reads committed messages is told the last stable offset as the end
    whole = Consumer({**settings, "isolation.level": "read_uncommitted"})
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            _, end = whole.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
            if message.offset() < end:
                continue
            break
        key, value = message.key(), message.value()
        found.append((key and read(key), value and read(value)))
    consumer.close()
    whole.close()
    return found


class Kills:
    """A producer that ends the process at one of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, call: int, *, done: bool) -> None:
        """`done`: after the call."""
        outer = self

        class Made(Producer):
            pass

        def called(producer: Producer, *arguments: object, **named: object) -> object:
            outer.calls += 1
            if outer.calls < call:
                return getattr(Producer, name)(producer, *arguments, **named)
            if done:
                getattr(Producer, name)(producer, *arguments, **named)
            raise Killed

        self.calls = 0

        def abort(producer: Producer, *arguments: object) -> None:
            if outer.calls >= call:
                raise Killed
            Producer.abort_transaction(producer, *arguments)

        setattr(Made, name, called)
        Made.abort_transaction = abort  # type: ignore[method-assign]
        monkeypatch.setattr(kafka, "Producer", Made)


def test_an_export_to_kafka_when_it_is_killed_between_any_two_steps_then_each_change_is_committed_once(
    held: Lake, broker: KafkaBroker
) -> None:
    before = len(committed(broker))
    held.cut((ORDERS, [insert(**row(0))]))
    export(held, output(broker, "killed"))
    kills = [("begin_transaction", 1, True), ("produce", 2, True)]
    kills += [("commit_transaction", 1, False), ("commit_transaction", 1, True)]
    for number, (name, call, done) in enumerate(kills, 1):
        held.cut((ORDERS, [insert(**row(number)), insert(**row(100 + number))]))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            Kills(patched, name, call, done=done)
            export(held, output(broker, "killed"))
    export(held, output(broker, "killed"))
    held.cut((ORDERS, [update(row(0), row(0, "b")), delete(**row(0, "b"))]), truncate(ORDERS))
    export(held, output(broker, "killed"))
    found = committed(broker)[before:]
    numbers = [0, *(each for number in range(1, 1 + len(kills)) for each in (number, 100 + number))]
    assert [(key and key["id"], value and value["op"]) for key, value in found] == [
        *((number, "c") for number in numbers),
        *[(0, "u"), (0, "d"), (0, None), (None, "t")],
    ]


def test_an_export_to_kafka_when_another_one_takes_its_name_then_it_ends(held: Lake, broker: KafkaBroker) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    first = output(broker, "taken", schema=True)
    export(held, first)
    export(held, output(broker, "taken"))
    held.cut((ORDERS, [insert(**row(2))]))
    before = len(committed(broker))
    with pytest.raises(ExportOutputFailed, match="no other export is called taken"):
        first.write(first_step(held))
    assert len(committed(broker)) == before


@pytest.mark.parametrize(("name", "partitions", "policy"), [("wide", 6, "compact"), ("lossy", 1, "compact,delete")])
def test_an_export_to_kafka_when_its_topic_of_positions_would_lose_some_then_it_is_refused(
    broker: KafkaBroker, name: str, partitions: int, policy: str
) -> None:
    make_topic(broker, f"menura-export-{name}", partitions, policy)
    with pytest.raises(SinkSettingInvalid, match=f"{partitions} partitions and cleanup.policy={policy};"):
        output(broker, name).position()


def test_an_export_to_kafka_when_its_step_fails_then_its_transaction_is_aborted(
    held: Lake, broker: KafkaBroker
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    to = output(broker, "failing")
    assert to.position() is None
    before, step = len(committed(broker)), first_step(held)

    def away() -> None:
        to._producer.flush()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        to.write(failing(step, away))
    to.write(step)
    assert [key["id"] for key, _ in committed(broker)[before:]] == [1, 2]


def test_an_export_to_kafka_when_a_message_is_too_large_then_says_which_and_the_option_lets_it_out(
    held: Lake, broker: KafkaBroker
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2, "x" * 1_500_000))]))
    before = len(committed(broker))
    with pytest.raises(SinkSettingInvalid, match=r"message\.max\.bytes=BYTES") as refused:
        export(held, output(broker, "large"))
    assert (refused.value.table, refused.value.position) == ("orders", "gsn 2")
    export(held, output(broker, "large", options={"message.max.bytes": "4000000"}))
    assert [key["id"] for key, _ in committed(broker)[before:]] == [1, 2]


def test_an_export_to_kafka_when_a_compacted_topic_takes_no_message_without_a_key_then_says_so(
    held: Lake, broker: KafkaBroker
) -> None:
    journal = Table("journal", {"kind": pa.string()}, key=())
    make_topic(broker, "shop.shop.journal", 1, "compact")
    held.cut((journal, [insert(kind="a")]))
    with pytest.raises(SinkSettingInvalid, match=r"cleanup\.policy=delete") as refused:
        export(held, output(broker, "keyless"), table_id(journal))
    assert (refused.value.table, refused.value.position) == ("journal", "gsn 1")


def test_an_export_to_kafka_when_its_transaction_has_timed_out_then_says_so(held: Lake, broker: KafkaBroker) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    to = output(broker, "slow", options={"transaction.timeout.ms": "1000"})
    assert to.position() is None
    admin, topic = AdminClient({"bootstrap.servers": broker.servers, **QUIET}), TopicPartition("shop.shop.orders", 0)

    def end(level: IsolationLevel) -> int:
        found = admin.list_offsets({topic: OffsetSpec.latest()}, isolation_level=level)
        return int(found[topic].result().offset)

    def wait_for_its_end() -> None:
        to._producer.flush()
        committed, written = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        wait_for("the brokers to end it", lambda: end(committed) >= end(written))

    with pytest.raises(ExportOutputFailed, match="brokers end a transaction after 1 s"):
        to.write(failing(first_step(held), wait_for_its_end))


def test_an_export_to_kafka_when_a_later_run_has_a_table_of_the_same_topic_then_it_is_refused(
    held: Lake, broker: KafkaBroker
) -> None:
    tables = [Table(name, {"id": pa.int32()}) for name in ("order lines", "order?lines")]
    held.cut(*((table, [insert(id=1)]) for table in tables))
    export(held, output(broker, "same"), table_id(tables[0]))
    with pytest.raises(SinkSettingInvalid, match=r"would have one topic, shop\.shop\.order_lines"):
        export(held, output(broker, "same"), table_id(tables[1]))
    assert len(committed(broker, "shop.shop.order_lines")) == 1


def test_the_command_when_it_exports_to_kafka_then_it_goes_on_behind_what_is_committed(
    held: Lake, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["acme/shop", "--lake", str(held.folder), "--kafka", broker.servers, "--name", "command"]
    before = len(committed(broker))
    for number in range(2):
        held.cut((ORDERS, [insert(**row(number))]))
        more = ["--from", "newest"] if not number else []  # of which all is out
        monkeypatch.setattr("sys.argv", ["menura export", *where, *more, "--kafka-option", "log_level=0"])
        assert export_command.main() == 0, capsys.readouterr().err
    assert [key["id"] for key, _ in committed(broker)[before:]] == [1]
    monkeypatch.setattr("sys.argv", ["menura export", *where, "--name", "NO"])
    assert export_command.main() == SinkSettingInvalid.exit_code
    with pytest.raises(SinkSettingInvalid, match="option of Kafka"):
        KafkaOutput(broker.servers, "x", Form(), {"nonsense": "1"})
    with pytest.raises(SinkSettingInvalid, match=r"options of Kafka: isolation\.level, transactional\.id: the"):
        own = {"transactional.id": "x", "isolation.level": "read_uncommitted"}
        KafkaOutput(broker.servers, "x", Form(), own)
