"""Changes of a table as Debezium's messages: key, envelope, tombstone, and Kafka Connect's schemas of them.

Comes in: `Row`s of one table in the changelog's order. Goes out: `Message`s in the same order. Both images of an update
that leaves the key as it is are one message (op u); of one that changes it the old key's delete (op d) with its
tombstone, then the new key's create (op c). Rows of dumps are reads (op r), a removal of all rows is a truncate
(op t). The source block has Debezium's fields and, behind them, where the change stands in Menura: `gsn`,
`transaction_id`, `position` in the source's words, and what of the row is not known. Pure.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from spark_sink.export.rows import Row, Shape, Struct
from spark_sink.work import TableId

CREATE, UPDATE, DELETE, READ, TRUNCATE = "c", "u", "d", "r", "t"
OPERATIONS = (CREATE, UPDATE, DELETE, READ, TRUNCATE)
_KINDS = {"insert": CREATE, "update_postimage": UPDATE, "delete": DELETE, "snapshot": READ, "truncate": TRUNCATE}
_PREIMAGE, _POSTIMAGE = "update_preimage", "update_postimage"
_SOURCE_FIELDS = (
    *((name, "string", False) for name in ("version", "connector", "name")),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
    ("table", "string", True),
    ("tenant", "string", False),
    ("gsn", "int64", False),
    ("transaction_id", "int64", False),
    ("position", "string", False),
    ("unavailable", "string", True),
    ("unrepresentable", "string", True),
)


@dataclass(frozen=True, slots=True)
class Message:
    gsn: int
    #: '': a tombstone
    op: str
    #: None: the table has no key, or the message is of all keys
    key: Struct | None
    #: None: a tombstone
    value: Struct | None
    #: lake names of the columns beyond those that the table has now
    former: tuple[str, ...] = ()


def topic_of(table: TableId) -> str:
    return f"{table.source}.{table.database}.{table.table}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """Of one table's messages."""

    table: TableId
    shape: Shape
    #: when they are made
    now_us: int
    _version: str = field(default_factory=lambda: version("menura"))

    @property
    def topic(self) -> str:
        return topic_of(self.table)

    def messages(self, rows: Iterable[Row]) -> Iterator[Message]:
        """Of rows in order."""
        waiting: list[Row] = []  # preimages whose other image has not come yet
        for row in rows:
            if waiting and (row.gsn > waiting[-1].gsn + 1 or row.kind not in (_PREIMAGE, _POSTIMAGE)):
                yield from self._deletes(waiting)
            if row.kind == _PREIMAGE:
                if waiting and row.gsn > waiting[-1].gsn:
                    yield from self._deletes(waiting)
                waiting.append(row)
            elif row.kind == _POSTIMAGE:
                before = next((each for each in waiting if each.key == row.key), None)
                if before is not None:
                    waiting.remove(before)
                    yield self._message(UPDATE, before, row)
                    continue
                is_moved = bool(waiting)
                yield from self._deletes(waiting)
                yield self._message(CREATE if is_moved else UPDATE, None, row)
            elif row.kind == "delete":
                waiting.append(row)
                yield from self._deletes(waiting)
            else:
                yield self._message(_KINDS[row.kind], None, row)
        yield from self._deletes(waiting)

    def _deletes(self, rows: list[Row]) -> Iterator[Message]:
        for row in rows:
            yield self._message(DELETE, row, None)
            if row.key is not None:
                yield Message(row.gsn, "", row.key, None)
        rows.clear()

    def _message(self, op: str, before: Row | None, after: Row | None) -> Message:
        row = after or before
        assert row is not None
        is_truncate = op == TRUNCATE
        images = {name: image for name, image in (("before", before), ("after", after)) if image and not is_truncate}
        value = {
            "before": images["before"].values if "before" in images else None,
            "after": images["after"].values if "after" in images else None,
            "source": self._source(row, images),
            "transaction": None,
            "op": op,
            "ts_ms": self.now_us // 1000,
            "ts_us": self.now_us,
            "ts_ns": self.now_us * 1000,
        }
        former = dict.fromkeys(name for image in images.values() for name in image.former)
        return Message(row.gsn, op, None if is_truncate else row.key, value, tuple(former))

    def _source(self, row: Row, images: dict[str, Row]) -> Struct:
        unavailable = {name: image.absent for name, image in images.items() if image.absent}
        unrepresentable = {name: image.unrepresentable for name, image in images.items() if image.unrepresentable}
        at_us = row.committed_us
        return {
            "version": self._version,
            "connector": "menura",
            "name": self.table.source,
            "ts_ms": at_us // 1000,
            "snapshot": "true" if row.kind == "snapshot" else "false",
            "db": self.table.database,
            "sequence": json.dumps([str(row.gsn)]),
            "ts_us": at_us,
            "ts_ns": at_us * 1000,
            "table": self.table.table,
            "tenant": self.table.tenant,
            "gsn": row.gsn,
            "transaction_id": row.transaction_id,
            "position": row.position,
            "unavailable": _text(unavailable),
            "unrepresentable": _text(unrepresentable),
        }

    def key_schema(self) -> Struct:
        fields = self.shape.fields()
        return {
            "type": "struct",
            "fields": [fields[name].schema(name, optional=False) for name in self.shape.key],
            "optional": False,
            "name": f"{self.topic}.Key",
        }

    def value_schema(self, former: tuple[str, ...] = ()) -> Struct:
        fields = self.shape.fields(former)
        row = [of.schema(name, optional=name not in self.shape.key) for name, of in fields.items()]
        images = [_struct(f"{self.topic}.Value", row, place, optional=True) for place in ("before", "after")]
        source = [_plain(name, type_, optional=optional) for name, type_, optional in _SOURCE_FIELDS]
        block = [_plain(name, type_) for name, type_ in (("id", "string"), ("total_order", "int64"),
                                                         ("data_collection_order", "int64"))]  # fmt: skip
        return {
            "type": "struct",
            "fields": [
                *images,
                _struct("io.debezium.connector.menura.Source", source, "source", optional=False),
                {**_struct("event.block", block, "transaction", optional=True), "version": 1},
                _plain("op", "string"),
                *(_plain(name, "int64", optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
            ],
            "optional": False,
            "name": f"{self.topic}.Envelope",
            "version": 2,
        }


def _struct(name: str, fields: list[Struct], place: str, *, optional: bool) -> Struct:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name, "field": place}


def _plain(name: str, type_: str, *, optional: bool = False) -> Struct:
    return {"type": type_, "optional": optional, "field": name}


def _text(found: dict[str, Any]) -> str | None:
    return json.dumps(found, ensure_ascii=False) if found else None


class JsonLines:
    """Messages of a table as JSON, one a line: the envelope, or with `keys` the key, a tab and the envelope.

    With `schema` each stands beside its schema, as Kafka Connect's JsonConverter has it. Without keys a tombstone says
    nothing, so there is none.
    """

    def __init__(self, envelope: Envelope, *, keys: bool = False, schema: bool = False) -> None:
        self._keys = keys
        self._envelope = envelope
        self._schema = schema
        self._schemas: dict[tuple[str, ...], str] = {}

    def line(self, message: Message) -> str | None:
        """Without its end; None: the message has no line."""
        if not self._keys:
            return self.value(message)
        return f"{self.key(message) or 'null'}\t{self.value(message) or 'null'}"

    def key(self, message: Message) -> str | None:
        """None: it has none."""
        if message.key is None:
            return None
        key = _json(message.key)
        return f'{{"schema":{_json(self._envelope.key_schema())},"payload":{key}}}' if self._schema else key

    def value(self, message: Message) -> str | None:
        """None: a tombstone."""
        if message.value is None:
            return None
        value = _json(message.value)
        if not self._schema:
            return value
        if message.former not in self._schemas:
            self._schemas[message.former] = _json(self._envelope.value_schema(message.former))
        return f'{{"schema":{self._schemas[message.former]},"payload":{value}}}'


def _json(value: Struct) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
