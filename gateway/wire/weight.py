"""How many fields a message has, before protobuf makes objects of them: a byte of the wire may become a hundred here.

Comes in: the bytes of a large message. Goes out: nothing, or `PayloadInvalid` once there are too many. Walks the wire
format by the message's schema, nested messages included, and keeps nothing. For a worker thread.
"""

from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gateway.errors import PayloadInvalid
from gateway.wire.fields import fields

#: of one message; protobuf takes about a hundred bytes for each that is a message or a text
MAX_FIELDS = 1_000_000
#: more than menura.v1 nests
MAX_DEPTH = 16


def check_weight(data: memoryview, message: type[Message]) -> None:
    """Raises `PayloadInvalid`; ValueError for what is no message."""
    _walk(data, cast(Descriptor, message.DESCRIPTOR), 0, MAX_DEPTH)


def _walk(data: memoryview, schema: Descriptor, count: int, depth: int) -> int:
    if not depth:
        raise ValueError("nested too deeply")
    known = schema.fields_by_number
    for number, _, value in fields(data):
        count += 1
        field = known.get(number)
        if value is not None and field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            count = _walk(value, cast(Descriptor, field.message_type), count, depth - 1)
        if count > MAX_FIELDS:
            raise PayloadInvalid("reading a message", f"more than {MAX_FIELDS} fields")
    return count
