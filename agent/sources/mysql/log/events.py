"""Bodies of the log events that Python reads: few per file, never one per row.

Pure: the bytes after the event header, without the checksum, in; values out. A body that is too short or
contradicts itself raises `EventBodyError`.
"""

import re
import struct
from dataclasses import dataclass

_QUERY_HEAD = struct.Struct("<IIBHH")
_FORMAT_HEAD = struct.Struct("<H50sIB")
#: EXECUTE_LOAD_QUERY: file id, two offsets into the text, how to treat duplicates
_LOAD_QUERY_EXTRA_BYTES = 13

#: the name of a log file, of at most FN_REFLEN bytes less one
_LOG_FILE = re.compile(r"[^\0]+\.[0-9]+")
_MOST_FILE_BYTES = 511

_CHECKSUM_OFF = 0
_CHECKSUM_CRC32 = 1


class EventBodyError(ValueError):
    """The body can't be what its type says."""


@dataclass(frozen=True, slots=True)
class FormatDescription:
    server_version: str
    header_bytes: int
    #: the events after it end with a CRC32
    checksum: bool


@dataclass(frozen=True, slots=True)
class Rotate:
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """A statement as logged. `text` keeps undecodable bytes as surrogates: only names in it are compared."""

    database: str
    error_code: int
    text: str
    #: the session's settings, read by `query_status`
    status: bytes = b""


def parse_format_description(body: bytes) -> FormatDescription:
    """
    ::

        2 log version   50 server version, zero-padded   4 time   1 event header's length
        1 per event type: its post-header's length   1 checksum algorithm (0 off, 1 CRC32)
    """
    if len(body) < _FORMAT_HEAD.size + 2:
        raise EventBodyError(f"{len(body)} bytes are too few for a format description")
    log_version, version, _, header_bytes = _FORMAT_HEAD.unpack_from(body)
    if log_version != 4 or header_bytes != 19:
        raise EventBodyError(f"log version {log_version} with headers of {header_bytes} bytes, expected 4 and 19")
    algorithm = body[-1]
    if algorithm not in (_CHECKSUM_OFF, _CHECKSUM_CRC32):
        raise EventBodyError(f"checksum algorithm {algorithm}, expected 0 or 1")
    return FormatDescription(
        version.rstrip(b"\0").decode("ascii", "replace"), header_bytes, algorithm == _CHECKSUM_CRC32
    )


def parse_rotate(body: bytes) -> Rotate:
    """
    ::

        8 offset   the rest: file

    >>> parse_rotate(bytes([4, 0, 0, 0, 0, 0, 0, 0]) + b"binlog.000002")
    Rotate(file='binlog.000002', offset=4)
    """
    if len(body) <= 8:
        raise EventBodyError(f"{len(body)} bytes are too few for a rotate event")
    try:
        file = body[8:].decode()
    except UnicodeDecodeError as broken:
        raise EventBodyError("a log file's name that is not UTF-8") from broken
    if _LOG_FILE.fullmatch(file) is None or len(body) > 8 + _MOST_FILE_BYTES:
        raise EventBodyError("a rotate event that names no log file")
    return Rotate(file, int.from_bytes(body[:8], "little"))


def parse_query(body: bytes, *, is_load: bool = False) -> Query:
    """
    ::

        4 thread   4 execution time   1 length of database   2 error code   2 length of status
        (load: 13 more)   status   database, 0   the rest: text
    """
    start = _QUERY_HEAD.size + (_LOAD_QUERY_EXTRA_BYTES if is_load else 0)
    if len(body) < start:
        raise EventBodyError(f"{len(body)} bytes are too few for a query event")
    _, _, database_bytes, error_code, status_bytes = _QUERY_HEAD.unpack_from(body)
    database_at = start + status_bytes
    text_at = database_at + database_bytes + 1
    if text_at > len(body) or body[text_at - 1] != 0:
        raise EventBodyError("the lengths of a query event contradict each other")
    database = body[database_at : text_at - 1].decode("utf-8", "surrogateescape")
    return Query(database, error_code, body[text_at:].decode("utf-8", "surrogateescape"), body[start:database_at])


def parse_incident(body: bytes) -> str:
    """What happened, in the server's words.

    ::

        2 number of the incident (1: lost events)   1 length   text
    """
    if len(body) < 3 or len(body) < 3 + body[2]:
        raise EventBodyError(f"{len(body)} bytes are too few for an incident")
    number = int.from_bytes(body[:2], "little")
    text = body[3 : 3 + body[2]].decode("utf-8", "replace")
    return f"incident {number}" + (f": {text}" if text else "")
