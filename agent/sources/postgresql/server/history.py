"""Whether a server's log is still the one that was read: its commit record of the last transaction, byte for byte.

A server that is put back from a copy of its files writes its log anew from there on, with the same system identifier
and on the same timeline. The record of a commit has the transaction's id and the microsecond of its commit. The stream
of changes can't show it again: what it sends of a transaction depends on publications, and on what it sent before. So
the log's bytes are asked for, as a physical standby does; the right to replicate is enough. Nothing is durable.
"""

import logging
import struct
from contextlib import closing

from pg8000.exceptions import DatabaseError

from agent.sources.postgresql.config import ServerConfig
from agent.sources.postgresql.positions import LastTransaction, lsn_text
from agent.sources.postgresql.server.connection import Connection, server_errors, setting, sqlstate
from agent.sources.postgresql.server.wire import Wire

log = logging.getLogger("menura.wal")

_EPOCH_2000_US = 946_684_800_000_000
#: of a page, and more of a segment's first one
_PAGE_HEADER_BYTES = 24
_LONG_PAGE_HEADER_BYTES = 40
_LONG_PAGE_HEADER = 0x0002
#: of a commit: more than any number of subtransactions makes that a server can hold
MOST_RECORD_BYTES = 64 << 20


def has_commit(
    connection: Connection, server: ServerConfig, source: str, timeline: int, last: LastTransaction
) -> bool | None:
    """Whether the server's log has the commit's record at its place; None: the server does not show it.

    `timeline`: the one of the server's own that has the place. `connection` is one to the server; raises a
    `SourceError` where that can't be reached.
    """
    page_bytes = int(setting(connection, "wal_block_size") or 8192)
    at = last.commit_lsn - last.commit_lsn % page_bytes
    with (
        closing(Wire.open(server, source, replication=True)) as wire,
        server_errors("comparing the server's log with what was read", server, source),
    ):
        try:
            pages = wire.physical_wal(at, min(last.end_lsn, at + MOST_RECORD_BYTES), timeline)
        except DatabaseError as refused:
            fields = {"source": source, "lsn": lsn_text(last.commit_lsn), "sqlstate": sqlstate(refused)}
            log.warning(
                "comparing the log with what was read: the server does not show it, so that it was not put back from a"
                " copy is not proven. Where it was put back, resync the tables: menura sync resync",
                extra={"fields": fields},
            )
            return None
    return is_commit(without_page_headers(pages, page_bytes, last.commit_lsn - at), last)


def without_page_headers(pages: bytes, page_bytes: int, begin: int) -> bytes:
    """What the log has from `begin` on, where `pages` begin with a page."""
    found = bytearray()
    for at in range(0, len(pages), page_bytes):
        (info,) = struct.unpack_from("<H", pages, at + 2) if at + 4 <= len(pages) else (0,)
        header = _LONG_PAGE_HEADER_BYTES if info & _LONG_PAGE_HEADER else _PAGE_HEADER_BYTES
        found += pages[max(begin, at + header) : at + page_bytes]
    return bytes(found)


def is_commit(record: bytes, last: LastTransaction) -> bool:
    """Whether a record is that of the transaction, whatever it has beside id and time: a prepared one has its id, and
    one from elsewhere its time, behind what others have.

    >>> last = LastTransaction(100, 148, 7, 946_684_800_000_005)
    >>> is_commit(bytes([48, 0, 0, 0, 7, 0, 0, 0]) + bytes(16) + bytes([5, 0, 0, 0, 0, 0, 0, 0]), last)
    True
    >>> is_commit(bytes([48, 0, 0, 0, 7, 0, 0, 0]) + bytes(16) + bytes([6, 0, 0, 0, 0, 0, 0, 0]), last)
    False
    """
    time_us = struct.pack("<q", last.commit_us - _EPOCH_2000_US)
    return struct.pack("<I", last.xid) in record and (not last.commit_us or time_us in record)
