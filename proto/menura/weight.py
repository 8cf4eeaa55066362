"""How many fields a message has, before protobuf makes objects of them: a byte of the wire may become a hundred here.

Comes in: the bytes of a large message. Goes out: nothing, or `TooManyFields`. Walks the wire format by the message's
schema, nested messages included, and keeps nothing. For a worker thread.
"""

from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from menura.wire_fields import fields

#: of one message; protobuf takes about a hundred bytes for each that is a message or a text
MAX_FIELDS: Final = 1_000_000
#: more than menura.v1 nests
MAX_DEPTH: Final = 16


class TooManyFields(Exception):
    """Says how many are allowed."""


def check_weight(data: memoryview, message: type[Message], most: int = MAX_FIELDS) -> None:
    """Raises `TooManyFields`; ValueError for what is no message."""
    _walk(data, cast(Descriptor, message.DESCRIPTOR), 0, MAX_DEPTH, most)


def _walk(data: memoryview, schema: Descriptor, count: int, depth: int, most: int) -> int:
    if not depth:
        raise ValueError("nested too deeply")
    known = schema.fields_by_number
    for number, _, value in fields(data):
        count += 1
        field = known.get(number)
        if value is not None and field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            count = _walk(value, cast(Descriptor, field.message_type), count, depth - 1, most)
        if count > most:
            raise TooManyFields(f"more than {most} fields")
    return count
