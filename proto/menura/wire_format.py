"""Protobuf's wire format, for messages whose largest field is not to be copied: it is written beside the library."""

_LENGTH_DELIMITED = 2


def length_delimited(number: int, size_bytes: int) -> bytes:
    """What stands before the value of a field with a length: its tag and the length.

    >>> length_delimited(1, 300).hex()
    '0aac02'
    """
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
