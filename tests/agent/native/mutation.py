"""Binlog streams taken apart and put together: damaged bytes for the decoder's tests."""

import zlib
from collections.abc import Iterator

from agent.sources.mysql.log import constants as binlog

HEADER_BYTES = 19


def payloads(data: bytes) -> Iterator[bytes]:
    """The packets' payloads; a continued one as a whole."""
    at, whole = 0, b""
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        whole += data[at + 4 : at + 4 + size]
        at += 4 + size
        if size < 0xFFFFFF:
            yield whole
            whole = b""


def packets(whole: bytes) -> bytes:
    """A payload as packets."""
    parts = []
    for at in range(0, len(whole) + 1, 0xFFFFFF):
        part = whole[at : at + 0xFFFFFF]
        parts.append(len(part).to_bytes(3, "little") + b"\0" + part)
    return b"".join(parts)


def event(
    type_: int, body: bytes, *, checksum: bool = True, log_pos: int = 1000, timestamp: int = 1, server_id: int = 1
) -> bytes:
    """A packet with one event."""
    size = HEADER_BYTES + len(body) + (4 if checksum else 0)
    head = timestamp.to_bytes(4, "little") + bytes([type_]) + server_id.to_bytes(4, "little")
    head += size.to_bytes(4, "little") + log_pos.to_bytes(4, "little") + b"\0\0"
    tail = zlib.crc32(head + body).to_bytes(4, "little") if checksum else b""
    return packets(b"\0" + head + body + tail)


def without_checksums(data: bytes) -> bytes:
    """The same events with no checksum, so that they can be damaged."""
    changed = bytearray()
    for payload in payloads(data):
        if payload[:1] != b"\0":
            changed += packets(payload)
            continue
        type_, body = payload[5], bytearray(payload[1 : len(payload) - 4])
        if type_ == binlog.FORMAT_DESCRIPTION_EVENT:
            body[-1] = 0
            body += bytes(4)
        body[9:13] = len(body).to_bytes(4, "little")
        changed += packets(b"\0" + bytes(body))
    return bytes(changed)
