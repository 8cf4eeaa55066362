"""Messages as Avro's object container files, which say their schema themselves and need no registry.

Comes in: a step's messages. Goes out: entries of files CUT-GSN-NUMBER.avro: blocks of messages, deflated, each message
an envelope or, with keys, a record of `key` and `value`, of which a tombstone has the key alone. A file has one schema,
so the next number begins where a message has another one; read in the order of their names they are in order. What is
durable is `outputs`' business: a file that is closed can be gone on with.
"""

import secrets
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spark_sink.export.avro import Codec, Codecs
from spark_sink.export.avro_binary import write_bytes, write_long
from spark_sink.export.envelope import Envelope, Message
from spark_sink.export.feed import TableStep
from spark_sink.export.outputs import Entry, Form, Sheet
from spark_sink.export.rows import Struct

#: of messages, before they are deflated
BLOCK_BYTES = 64 << 10
SYNC_BYTES = 16
_MAGIC = b"Obj\x01"
_CODEC = b"deflate"
_LEVEL = 1


class AvroEntries:
    """Of one step."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._sync = secrets.token_bytes(SYNC_BYTES)
        self._tables: dict[int, _TableFiles] = {}

    def entry(self, of: TableStep, message: Message) -> Entry | None:
        if not self._form.has(message) or (message.value is None and not self._form.keys):
            return None
        found = self._tables.get(id(of))
        if found is None:
            found = self._tables[id(of)] = _TableFiles(of.envelope, self._sync, has_keys=self._form.keys)
        return found.entry(message)


class _TableFiles:
    def __init__(self, envelope: Envelope, sync: bytes, *, has_keys: bool) -> None:
        self._table = envelope.table
        self._has_keys = has_keys
        self._sync = sync
        schema = partial(_keyed, envelope) if has_keys else envelope.value_schema
        self._codecs = Codecs(envelope, lambda former: Codec.of(self._table, schema(former)))
        #: of the file that is written: its schema, its name's end, how it is opened
        self._file: tuple[Codec, str, Callable[[Path, bool], Sheet]] | None = None
        self._number = 0

    def entry(self, message: Message) -> Entry:
        codec = self._codecs.of(message.former)
        if self._file is None or self._file[0] is not codec:
            self._number += 1
            self._file = codec, f"-{self._number:06}.avro", partial(ContainerFile, codec.schema, self._sync)
        _, suffix, opens = self._file
        values: Struct | None = message.value
        if self._has_keys:
            values = {"key": message.key, "value": message.value}
        assert values is not None
        return suffix, opens, codec.encode(self._table, message.gsn, values)


def _keyed(envelope: Envelope, former: tuple[str, ...]) -> Struct:
    parts = {"key": envelope.key_schema(), "value": envelope.value_schema(former)}
    fields = [{**schema, "optional": True, "field": part} for part, schema in parts.items()]
    return {"type": "struct", "optional": False, "name": f"{envelope.topic}.Message", "fields": fields}


class ContainerFile:
    """A file of one schema that is being written."""

    def __init__(self, schema: str, sync: bytes, path: Path, goes_on: bool) -> None:
        self._sync = sync
        self._block = bytearray()
        self._count = 0
        self._file = path.open("ab" if goes_on else "wb")
        if not goes_on:
            self._file.write(_head(schema) + sync)

    def write(self, data: bytes) -> None:
        """A value of the schema."""
        self._block += data
        self._count += 1
        if len(self._block) >= BLOCK_BYTES:
            self._end_block()

    def close(self) -> None:
        try:
            self._end_block()
        finally:
            self._file.close()

    def _end_block(self) -> None:
        if not self._count:
            return
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        found = bytearray()
        write_long(found, self._count)
        write_bytes(found, deflate.compress(self._block) + deflate.flush())
        self._file.write(found + self._sync)
        self._block.clear()
        self._count = 0


def _head(schema: str) -> bytes:
    """Magic, and a map: its block of two entries, then none."""
    found = bytearray(_MAGIC)
    write_long(found, 2)
    for name, value in ((b"avro.schema", schema.encode()), (b"avro.codec", _CODEC)):
        write_bytes(found, name)
        write_bytes(found, value)
    write_long(found, 0)
    return bytes(found)
