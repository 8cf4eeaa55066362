"""Events that are compressed, taken apart and put together, so that mutations reach what is inside of them.

::

    TRANSACTION_PAYLOAD_EVENT   fields: type, length, value, each a length-encoded number; 0 ends them; a zstd frame
        1 size of the frame   2 compression: 0   3 size of the events
    MariaDB's compressed rows   all of a rows event up to its rows; 0x80 + bytes of a size; the size, big-endian; zlib
"""

import zlib

from backports import zstd

from tests.agent.native.mutation import HEADER_BYTES

TRANSACTION_PAYLOAD = 40
COMPRESSED_ROWS_V1 = range(166, 169)
BODY = 1 + HEADER_BYTES
UPDATE_ROWS_COMPRESSED_V1 = 167
_SIZE_AT = 9


def inner_events(payload: bytes) -> list[bytes] | None:
    """The events of a compressed transaction as payloads; None: it can't be taken apart."""
    at = BODY
    try:
        while payload[at]:
            at += 2 + payload[at + 1]
        data = zstd.decompress(payload[at + 1 :])
    except (IndexError, zstd.ZstdError):
        return None
    events, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + _SIZE_AT : at + _SIZE_AT + 4], "little")
        if not HEADER_BYTES <= size <= len(data) - at:
            return None
        events.append(b"\0" + data[at : at + size])
        at += size
    return events


def with_inner_events(payload: bytes, events: list[bytes], *, compressed: bool = True) -> bytes:
    data = b"".join(event[1:] for event in events)
    packed = zstd.compress(data, 1) if compressed else data
    fields = _field(2, 0 if compressed else 255) + _field(3, len(data)) + _field(1, len(packed)) + b"\0"
    return _resized(payload[:BODY] + fields + packed)


def _field(kind: int, number: int) -> bytes:
    value = _packed(number)
    return _packed(kind) + _packed(len(value)) + value


def _packed(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return b"\xfd" + number.to_bytes(3, "little")


def inner_rows(payload: bytes) -> bytes | None:
    """A compressed rows event as the plain one that it holds; None: it can't be taken apart."""
    try:
        at = _rows_at(payload)
        rows = zlib.decompress(payload[at + 1 + (payload[at] & 7) :])
    except (IndexError, zlib.error):
        return None
    return payload[:at] + rows


def with_inner_rows(plain: bytes) -> bytes:
    at = min(len(plain), _rows_at(plain))
    rows = plain[at:]
    return _resized(plain[:at] + b"\x84" + len(rows).to_bytes(4, "big") + zlib.compress(rows, 1))


def _rows_at(payload: bytes) -> int:
    """6 table id   2 flags   1 number of columns (they are few here)   a bit each, an update's twice   rows"""
    bitmap = (payload[BODY + 8] + 7) // 8
    return BODY + 9 + bitmap * (2 if payload[5] == UPDATE_ROWS_COMPRESSED_V1 else 1)


def _resized(payload: bytes) -> bytes:
    """With the header's size set right."""
    return payload[: 1 + _SIZE_AT] + (len(payload) - 1).to_bytes(4, "little") + payload[5 + _SIZE_AT :]
