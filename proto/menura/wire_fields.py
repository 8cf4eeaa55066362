"""Protobuf's wire format as fields, without a schema; every byte is hostile.

The format (protobuf.dev/programming-guides/encoding)::

    field    tag varint: number << 3 | wire type, then the value
    type     0: varint | 1: eight bytes | 2: length varint, bytes | 5: four bytes

>>> [(number, bytes(whole)) for number, whole, _ in fields(memoryview(b"\\x08\\x07\\x12\\x01a"))]
[(1, b'\\x08\\x07'), (2, b'\\x12\\x01a')]
"""

from collections.abc import Iterator

_MAX_VARINT_BYTES = 10


def fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Each field's number, all of its bytes, and the value of one with a length; ValueError: no such fields."""
    at = 0
    while at < len(data):
        tag, value_at = _varint(data, at)
        value = None
        match tag & 7:
            case 0:  # a varint
                _, end = _varint(data, value_at)
            case 1:  # eight bytes
                end = value_at + 8
            case 2:  # a length and as many bytes
                size, start = _varint(data, value_at)
                end = start + size
                value = data[start:end]
            case 5:  # four bytes
                end = value_at + 4
            case other:
                raise ValueError(f"wire type {other}")
        if end > len(data):
            raise ValueError("a field beyond the end")
        yield tag >> 3, data[at:end], value
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at + place >= len(data):
            raise ValueError("a number beyond the end")
        octet = data[at + place]
        value |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return value, at + place + 1
    raise ValueError("a number that does not end")
