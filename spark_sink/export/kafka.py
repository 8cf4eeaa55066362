"""An export to Kafka: a topic of each table, each change once, by transactions.

Comes in: `Step`s. Goes out: one transaction a step, with its messages and, in the topic `menura-export-NAME`, the
position of each table behind it. That topic has one partition and is compacted, or the export is refused. Its name is
the transactional id too: who begins with it ends what another one of this name has begun, which then can't write any
more. Durable is what a transaction has committed; a consumer that reads committed messages alone sees each change once.
A step that fails aborts its transaction; a kill leaves one that the next start aborts, or one that is committed whole:
the position says which. Whether a commit whose answer was lost has been done is read there too.

A topic is called SOURCE.DATABASE.TABLE, with `_` for what Kafka has no sign for; the broker makes it, or somebody
before. Messages are JSON, or Avro with a schema registry. A message's key decides its partition, as Java's producers do
it. A removal of all rows, and changes of tables without a key, have no key: such a table's topic has to have one
partition to be in order.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from spark_sink.errors import ExportOutputFailed, ExportTaken, SinkError, SinkSettingInvalid
from spark_sink.export.avro import AvroMessages
from spark_sink.export.envelope import Envelope, JsonLines, Message, topic_of
from spark_sink.export.feed import Step
from spark_sink.export.kafka_settings import refused
from spark_sink.export.outputs import Form
from spark_sink.export.position import Position, TablePosition, read_position
from spark_sink.export.registry import Registry
from spark_sink.work import TableId

#: until a broker ends a transaction by itself: the most that it allows by default
TRANSACTION_SECONDS = 900
ANSWER_SECONDS = 60
_DOING = "exporting to Kafka"
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")
#: what is found and what to do, where a message is refused whenever it is sent
_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "the message, or the batch that it is in, is larger than may be",
        "Give --kafka-option message.max.bytes=BYTES (of a pipe: in settings), and the topic as much as"
        " max.message.bytes",
    ),
    KafkaError.INVALID_RECORD: (
        "the broker takes no such message; where the topic is compacted, none without a key",
        "Give the topic cleanup.policy=delete; or, where only a removal of all rows has no key, leave these out with"
        " --skipped-operations t",
    ),
}
#: another producer has begun with this one's transactional id
_TAKEN = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


class Encodes(Protocol):
    """Messages of a table, for Kafka."""

    def key(self, message: Message) -> str | bytes | None: ...

    def value(self, message: Message) -> str | bytes | None: ...


class KafkaOutput:
    def __init__(
        self, servers: str, name: str, form: Form, options: Mapping[str, str], registry: Registry | None = None
    ) -> None:
        """`options`: librdkafka's, e.g. of TLS and login; `registry`: of schemas, for messages in Avro, else they are
        JSON. Raises `SinkSettingInvalid`."""
        if taken := refused(options):
            raise SinkSettingInvalid(
                "reading the arguments",
                f"options of Kafka: {', '.join(taken)}: the export sets this itself, so that each change is there once",
                remedy="Leave it out; the export's name, and the brokers, have arguments of their own",
            )
        self._form = form
        self._registry = registry
        self._name = name
        self._positions = f"menura-export-{name}"
        self._common: dict[str, str | int | float | bool] = {"bootstrap.servers": servers, **options}
        own = {
            "transactional.id": self._positions,
            "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "compression.type": "zstd",
            "delivery.report.only.error": True,
        }
        try:
            self._producer = Producer({**own, **self._common})
        except KafkaException as wrong:
            raise SinkSettingInvalid(
                "reading the arguments",
                f"an option of Kafka: {wrong.args[0].str()}",
                remedy="Correct --kafka-option, or settings of a pipe",
            ) from wrong
        own_limit = str(TRANSACTION_SECONDS * 1000)
        self._limit_seconds = int(options.get("transaction.timeout.ms", own_limit)) / 1000
        #: when a transaction began
        self._began: float | None = None
        #: the first message of a transaction that was refused for good: whose it is, its number, why
        self._refused: tuple[TableId, int, KafkaError] | None = None
        #: why this producer is of no use any more; what it says of a message then is that, and no reason
        self._taken: KafkaError | None = None

    def position(self) -> Position | None:
        with self._writing():
            self._make_positions_topic()
            self._producer.init_transactions(ANSWER_SECONDS)
            return self._read_position()

    def write(self, step: Step) -> None:
        topics = _topics(step)
        encoders = {each.envelope.table: self._encoder(each.envelope, topics) for of in step.sources for each in of}
        with self._writing():
            self._refused, self._began = None, time.monotonic()
            self._producer.begin_transaction()
            try:
                self._produce(step, topics, encoders)
            except BaseException as failure:
                self._abort(failure)
                raise
            try:
                self._producer.commit_transaction(ANSWER_SECONDS)
            except KafkaException as failure:
                if failure.args[0].txn_requires_abort():
                    self._abort(failure)
                raise

    def _abort(self, failure: BaseException) -> None:
        """Since consumers wait for an open transaction. What can't be aborted is by the next start, or in time."""
        try:
            self._producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException as unable:
            failure.add_note(f"Nor could the transaction be aborted: {unable.args[0].str()}")
            if unable.args[0].code() in _TAKEN:
                self._taken = unable.args[0]

    def _encoder(self, envelope: Envelope, topics: Mapping[TableId, str]) -> Encodes:
        """A schema that is refused is refused before the transaction begins, but one of former columns."""
        if self._registry is None:
            return JsonLines(envelope, schema=self._form.schema)
        found = AvroMessages(envelope, topics[envelope.table], self._registry)
        found.register()
        return found

    def _produce(self, step: Step, topics: Mapping[TableId, str], encoders: Mapping[TableId, Encodes]) -> None:
        for of, message in step.messages():
            if self._form.has(message):
                table = of.envelope.table
                encoder = encoders[table]
                delivered = partial(self._delivered, table, message.gsn)
                self._send(topics[table], encoder.key(message), encoder.value(message), delivered)
        moved = [each.envelope.table for tables in step.sources for each in tables]
        for table in moved or step.position.tables:
            source = (table.tenant, table.source)
            position = Position({source: step.position.cuts[source]}, {table: step.position.tables[table]})
            key = json.dumps([table.tenant, table.source, table.database, table.table])
            delivered = partial(self._delivered, table, step.position.tables[table].gsn)
            self._send(self._positions, key, json.dumps(position.document()), delivered, partition=0)

    def _delivered(self, table: TableId, gsn: int, error: KafkaError | None, _message: object) -> None:
        if error is not None and error.code() in _REFUSALS and self._refused is None:
            self._refused = (table, gsn, error)

    def _send(
        self,
        topic: str,
        key: str | bytes | None,
        value: str | bytes | None,
        delivered: Callable[[KafkaError | None, object], None],
        partition: int = -1,
    ) -> None:
        """`partition` -1: that of the key. `delivered` is told what was not."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=delivered)
            except BufferError:  # as much waits as may
                self._producer.poll(1)
            except KafkaException as failure:
                delivered(failure.args[0], None)
                raise
            else:
                self._producer.poll(0)
                return

    def _make_positions_topic(self) -> None:
        topic = NewTopic(self._positions, num_partitions=1, config={"cleanup.policy": "compact"})
        admin = AdminClient(self._common)  # which ends its requests when it is gone
        try:
            admin.create_topics([topic], request_timeout=ANSWER_SECONDS)[self._positions].result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            self._check_positions_topic(admin)

    def _check_positions_topic(self, admin: AdminClient) -> None:
        """Somebody else may have made it, or changed it."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._positions)
        found = admin.describe_topics(TopicCollection([self._positions]), request_timeout=ANSWER_SECONDS)
        settings = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result()
        partitions = len(found[self._positions].result().partitions)
        policy = settings["cleanup.policy"].value
        if (partitions, policy) != (1, "compact"):
            raise SinkSettingInvalid(
                _DOING,
                f"the topic {self._positions} has {partitions} partitions and cleanup.policy={policy}; with others than"
                " 1 and compact, positions are lost",
                data="Nothing was exported",
                remedy="If another has made the topic, remove it, and the export makes it; else set its cleanup.policy",
            )

    def _read_position(self) -> Position | None:
        own = {
            "group.id": self._positions,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer({**own, **self._common})
        cuts: dict[tuple[str, str], int] = {}
        tables: dict[TableId, TablePosition] = {}
        try:
            consumer.assign([TopicPartition(self._positions, 0, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(ANSWER_SECONDS)
                if message is None:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        break
                    raise KafkaException(error)
                found = read_position((message.value() or b"").decode(errors="replace"), self._positions)
                for source, cut in found.cuts.items():
                    cuts[source] = max(cut, cuts.get(source, 0))
                tables.update(found.tables)
        finally:
            consumer.close()
        return Position(cuts, tables) if tables else None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            raise self._failed(failure.args[0]) from failure

    def _failed(self, error: KafkaError) -> SinkError:
        if self._refused is not None:
            table, gsn, error = self._refused
            found, remedy = _REFUSALS[error.code()]
            return SinkSettingInvalid(
                _DOING,
                f"{error.name()}: {found}",
                data="The transaction is not committed, and the position stays where it was",
                remedy=remedy,
                **table.names(),
                position=f"gsn {gsn}",
            )
        seconds = time.monotonic() - self._began if self._began is not None else 0
        if seconds >= self._limit_seconds:
            return ExportOutputFailed(
                _DOING,
                f"{error.name()}: the step took {seconds:.0f} s, and brokers end a transaction after"
                f" {self._limit_seconds:.0f} s",
                data="The transaction is not committed, or whole; the next start reads which",
                remedy="Give --kafka-option transaction.timeout.ms=MS (of a pipe: in settings), at most the brokers'"
                " transaction.max.timeout.ms, or export fewer tables by one command",
            )
        error = self._taken or error
        return (ExportTaken if error.code() in _TAKEN else ExportOutputFailed)(
            _DOING,
            f"{error.name()}: {error.str()}",
            data="The transaction is not committed, or whole; the next start reads which",
            remedy=f"Check the brokers, and that no other export is called {self._name}; then start it again",
        )


def _topics(step: Step) -> dict[TableId, str]:
    """Of each table that the export has or had. Raises `SinkSettingInvalid`."""
    topics: dict[TableId, str] = {}
    tables: dict[str, TableId] = {}
    for table in step.position.tables:
        topic = topics[table] = _ILLEGAL.sub("_", topic_of(table))
        if tables.setdefault(topic, table) != table:
            raise SinkSettingInvalid(
                _DOING,
                f"{table} and {tables[topic]} would have one topic, {topic}",
                data="Nothing of this step was exported",
                remedy="Export them by two commands to two clusters, or one of them to a folder",
            )
    return topics
