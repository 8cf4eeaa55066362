"""Messages of a table in Avro: which schema each has, and its bytes in the wire format of schema registries.

Comes in: `Message`s. Goes out: `Codec`s, and keys and values with a registered schema's id before them: a zero byte,
the id in four bytes, highest first, then Avro's binary encoding. The subjects are TOPIC-key and TOPIC-value, as by
TopicNameStrategy. A tombstone's value is none. Nothing is durable here but what the registry keeps.

A message's schema has the columns that the table has now, and the former ones that it holds values in. One of those
stays in the schemas of the step's later messages, unless another column has its name: so that there are few schemas.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from spark_sink.errors import ExportSchemaRefused, ExportValueRefused
from spark_sink.export.avro_binary import ValueUnfit, Writer, writer_of
from spark_sink.export.avro_schema import FieldsCollide, avro_schema
from spark_sink.export.envelope import Envelope, Message
from spark_sink.export.registry import Registry
from spark_sink.export.rows import Struct
from spark_sink.work import TableId

#: of a table and step, kept
MOST_SCHEMAS = 64
#: before a schema's id
_MAGIC = b"\x00"


@dataclass(frozen=True, slots=True)
class Codec:
    """A schema, and how values of it are written."""

    #: Avro's
    schema: str
    write: Writer
    #: before each value
    head: bytes = b""

    @classmethod
    def of(cls, table: TableId, connect: Struct) -> "Codec":
        """Raises `ExportSchemaRefused`."""
        try:
            schema = avro_schema(connect)
        except FieldsCollide as collide:
            raise ExportSchemaRefused(
                "making an Avro schema",
                f"of the columns {collide}, since Avro takes letters, digits and '_' alone",
                data="Nothing of this table's changes since the last step was exported",
                remedy="Rename one of the columns at the source, or export this table with --format json",
                **table.names(),
            ) from collide
        return cls(json.dumps(schema, ensure_ascii=False, separators=(",", ":")), writer_of(connect))

    def encode(self, table: TableId, gsn: int, values: Struct) -> bytes:
        """Raises `ExportValueRefused`."""
        found = bytearray(self.head)
        try:
            self.write(found, values)
        except ValueUnfit as unfit:
            raise ExportValueRefused(
                "encoding a change in Avro",
                f"the column {unfit} has a value that its type in Avro can't hold, and none may be missing there",
                data="Nothing of this table's changes since the last step was exported",
                remedy="Of an unsigned bigint give --unsigned-bigints precise; else export this table with --format"
                " json, which has the value as a text, or mend the row at its source and begin anew with --from state",
                **table.names(),
                position=f"gsn {gsn}",
            ) from unfit
        return bytes(found)


class Codecs:
    """Of a table's messages in their order."""

    def __init__(self, envelope: Envelope, make: Callable[[tuple[str, ...]], Codec]) -> None:
        """`make`: of these former columns."""
        names = Counter(column.name for column in envelope.shape.columns)
        self._lasting = frozenset(column.lake for column in envelope.shape.columns if names[column.name] == 1)
        self._make = lru_cache(MOST_SCHEMAS)(make)
        self._seen: frozenset[str] = frozenset()
        self._last: tuple[tuple[str, ...], Codec] | None = None

    def of(self, former: tuple[str, ...] = ()) -> Codec:
        if self._last is None or self._last[0] != former:
            self._seen |= self._lasting & set(former)
            self._last = former, self._make(tuple(sorted(self._seen.union(former))))
        return self._last[1]


class AvroMessages:
    """Of one table, with a registry; raises what `Registry.id_of` and `Codec` do."""

    def __init__(self, envelope: Envelope, topic: str, registry: Registry) -> None:
        self._table = envelope.table

        def registered(part: str, schema: Struct) -> Codec:
            codec = Codec.of(self._table, schema)
            number = registry.id_of(self._table, f"{topic}-{part}", codec.schema)
            return replace(codec, head=_MAGIC + number.to_bytes(4, "big"))

        self._keys = Codecs(envelope, lambda _: registered("key", envelope.key_schema()))
        self._values = Codecs(envelope, lambda former: registered("value", envelope.value_schema(former)))
        self._has_key = bool(envelope.shape.key)

    def register(self) -> None:
        """The schemas of messages without former columns."""
        if self._has_key:
            self._keys.of()
        self._values.of()

    def key(self, message: Message) -> bytes | None:
        """None: it has none."""
        return self._encoded(self._keys.of(), message, message.key)

    def value(self, message: Message) -> bytes | None:
        """None: a tombstone."""
        return self._encoded(self._values.of(message.former), message, message.value) if message.value else None

    def _encoded(self, codec: Codec, message: Message, values: dict[str, Any] | None) -> bytes | None:
        return codec.encode(self._table, message.gsn, values) if values is not None else None
