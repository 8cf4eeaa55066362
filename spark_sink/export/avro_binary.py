"""Values as Avro's binary encoding, by Kafka Connect's schemas.

Comes in: a schema as `Envelope.value_schema` gives it, and values by the names in it. Goes out: bytes that the schema
of `avro_schema` reads. Numbers are zigzag, seven bits a byte, lowest first; texts and bytes have their length before
them; what may be null has 0 (null) or 2 before it; a record is its fields in order. Pure.
"""

import struct
from collections.abc import Callable
from typing import Any

from spark_sink.export.rows import Struct

#: appends a value of its own type
Writer = Callable[[bytearray, Any], None]
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
_FALSE_TRUE = {False: 0, True: 1}
_FLOAT, _DOUBLE = struct.Struct("<f").pack, struct.Struct("<d").pack


class ValueUnfit(Exception):
    """A field's value is none of its type; the argument is its name."""


def writer_of(connect: Struct) -> Writer:
    """Of values of this schema. What it gives raises `ValueUnfit`.

    >>> encoded = bytearray()
    >>> fields = [{"type": kind, "optional": True, "field": kind} for kind in ("int64", "string")]
    >>> writer_of({"type": "struct", "optional": False, "fields": fields})(encoded, {"int64": -65, "string": None})
    >>> encoded.hex()
    '02810100'
    """
    return _struct(connect) if connect["type"] == "struct" else _WRITERS[connect["type"]]


def _struct(connect: Struct) -> Writer:
    fields = [(each["field"], writer_of(each), each["optional"]) for each in connect["fields"]]

    def write(to: bytearray, values: Struct) -> None:
        name = ""
        try:
            for name, write_value, is_optional in fields:
                value = values.get(name)
                if is_optional:
                    if value is None:
                        to.append(0)
                        continue
                    to.append(2)
                write_value(to, value)
        except _WRONG as wrong:
            raise ValueUnfit(name) from wrong

    return write


def write_long(to: bytearray, number: int) -> None:
    """Raises OverflowError above 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    if rest >> 64:
        raise OverflowError(f"{number.bit_length()} bits")
    while rest > 127:
        to.append(rest & 127 | 128)
        rest >>= 7
    to.append(rest)


def write_bytes(to: bytearray, value: bytes) -> None:
    size = len(value)
    if size < 64:
        to.append(size << 1)
    else:
        write_long(to, size)
    to += value


def _string(to: bytearray, value: str) -> None:
    write_bytes(to, value.encode())


def _float(to: bytearray, value: float) -> None:
    to += _FLOAT(value)


def _double(to: bytearray, value: float) -> None:
    to += _DOUBLE(value)


def _boolean(to: bytearray, value: bool) -> None:
    to.append(_FALSE_TRUE[value])


def _whole(bits: int) -> Writer:
    low, high = -1 << bits - 1, 1 << bits - 1

    def write(to: bytearray, number: int) -> None:
        if not low <= number < high:
            raise OverflowError(f"{number.bit_length()} bits")
        write_long(to, number)

    return write


_WRITERS: dict[str, Writer] = {
    "int16": _whole(16),
    "int32": _whole(32),
    "int64": write_long,
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "string": _string,
    "bytes": write_bytes,
}
