"""Names of XA transactions, as the log has them. Pure: statements and event bodies in, values out."""

import re
import struct
from dataclasses import dataclass

from agent.sources.mysql.log.events import EventBodyError

_STATEMENT = re.compile(
    r"XA (?P<verb>START|END|COMMIT|ROLLBACK) X'(?P<gtrid>[0-9A-Fa-f]*)',X'(?P<bqual>[0-9A-Fa-f]*)',(?P<format>-?[0-9]+)"
)
_PREPARE_HEAD = struct.Struct("<BIII")
#: of each of the two parts (MAXGTRIDSIZE, MAXBQUALSIZE)
_MOST_PART_BYTES = 64


@dataclass(frozen=True, slots=True)
class Xid:
    """Unique among the transactions that are prepared at one time; may be used again after its end."""

    #: modulo 2**32: the servers print it signed or not
    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        """As the servers log it.

        >>> str(Xid(1, b"a", b""))
        "X'61',X'',1"
        """
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


def parse_xa_statement(text: str) -> tuple[str, Xid]:
    """The verb (START, END, COMMIT, ROLLBACK) and the name; the servers log these in one form only.

    >>> parse_xa_statement("XA COMMIT X'00ff',X'',1")
    ('COMMIT', Xid(format_id=1, gtrid=b'\\x00\\xff', bqual=b''))
    """
    found = _STATEMENT.fullmatch(text)
    if found is None or len(found["gtrid"]) % 2 or len(found["bqual"]) % 2:
        raise EventBodyError("an XA statement in a form that the servers don't log")
    parts = bytes.fromhex(found["gtrid"]), bytes.fromhex(found["bqual"])
    _check(*parts)
    return found["verb"], Xid(int(found["format"]) % 2**32, *parts)


def parse_xa_prepare(body: bytes) -> tuple[Xid, bool]:
    """The name, and whether the transaction is committed at once.

    ::

        1 one phase   4 format   4 length of gtrid   4 length of bqual   gtrid   bqual
    """
    if len(body) < _PREPARE_HEAD.size:
        raise EventBodyError(f"{len(body)} bytes are too few for the end of a prepared transaction")
    one_phase, format_id, gtrid_bytes, bqual_bytes = _PREPARE_HEAD.unpack_from(body)
    data = body[_PREPARE_HEAD.size :]
    if one_phase > 1 or gtrid_bytes + bqual_bytes != len(data):
        raise EventBodyError("the lengths of a prepared transaction's name contradict each other")
    parts = data[:gtrid_bytes], data[gtrid_bytes:]
    _check(*parts)
    return Xid(format_id, *parts), bool(one_phase)


def _check(gtrid: bytes, bqual: bytes) -> None:
    if max(len(gtrid), len(bqual)) > _MOST_PART_BYTES:
        raise EventBodyError(f"a part of a prepared transaction's name has more than {_MOST_PART_BYTES} bytes")
