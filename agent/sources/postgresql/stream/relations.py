"""Messages of pgoutput that say of which table rows are, or that concern whole tables. Pure: bytes in, values out.

::

    R relation  4 oid   schema\\0   name\\0   1 replica identity   2 columns, each: 1 flags  name\\0  4 type  4 modifier
    T truncate  4 relations   1 options   4 oid of each
    M message   1 flags   8 LSN   prefix\\0   4 length   content

docs: protocol-logicalrep-message-formats. Whole numbers are big-endian; each length is checked against what is there.
"""

from dataclasses import dataclass

from agent.table_positions import Table

#: of a column: an old tuple that is a key has its value
_FLAG_IDENTITY = 1
_OPTION_CASCADE = 1
_OPTION_RESTART_IDENTITY = 2
_FLAG_TRANSACTIONAL = 1
#: an empty name of a schema stands for it
_OWN_SCHEMA = "pg_catalog"


class MessageBodyError(ValueError):
    """Bytes that are no such message; says why, without a value."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    #: atttypmod; -1: none
    modifier: int
    #: part of the replica identity
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the server decodes its rows from here on; generated columns are left out."""

    oid: int
    schema: str
    name: str
    #: as pg_class.relreplident: d, f, i, n
    replica_identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def table(self) -> Table:
        return self.schema, self.name


@dataclass(frozen=True, slots=True)
class Truncate:
    oids: tuple[int, ...]
    cascades: bool
    restarts_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """Of pg_logical_emit_message; its content is its writer's."""

    prefix: str
    transactional: bool


class _Body:
    """Reads a body from its start on."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise MessageBodyError(f"it ends after {len(self._body)} bytes, at least {end} were expected")
        taken, self._at = self._body[self._at : end], end
        return taken

    def text(self) -> str:
        end = self._body.find(0, self._at)
        if end < 0:
            raise MessageBodyError("a name in it does not end")
        text, self._at = self._body[self._at : end], end + 1
        try:
            return text.decode()
        except UnicodeDecodeError as wrong:
            raise MessageBodyError("a name in it is no UTF-8") from wrong

    def end(self) -> None:
        if self._at != len(self._body):
            raise MessageBodyError(f"it has {len(self._body)} bytes, {self._at} were expected")


def parse_relation(body: bytes) -> Relation:
    """Raises `MessageBodyError`.

    >>> parse_relation(b"\\0\\0\\x40\\0shop\\0t\\0d\\0\\1\\1id\\0\\0\\0\\0\\x17\\xff\\xff\\xff\\xff").columns
    (RelationColumn(name='id', type_oid=23, modifier=-1, identity=True),)
    """
    read = _Body(body)
    oid, schema, name = read.number(4), read.text() or _OWN_SCHEMA, read.text()
    identity = chr(read.number(1))
    columns = []
    for _ in range(read.number(2)):
        flags = read.number(1)
        columns.append(RelationColumn(read.text(), read.number(4), read.signed(4), bool(flags & _FLAG_IDENTITY)))
    read.end()
    return Relation(oid, schema, name, identity, tuple(columns))


def parse_truncate(body: bytes) -> Truncate:
    """Raises `MessageBodyError`.

    >>> parse_truncate(b"\\0\\0\\0\\1\\2\\0\\0\\x40\\0")
    Truncate(oids=(16384,), cascades=False, restarts_identity=True)
    """
    read = _Body(body)
    count, options = read.number(4), read.number(1)
    oids = tuple(int.from_bytes(read.take(4)) for _ in range(min(count, len(body) // 4 + 1)))
    read.end()
    return Truncate(oids, bool(options & _OPTION_CASCADE), bool(options & _OPTION_RESTART_IDENTITY))


def parse_message(body: bytes) -> LogicalMessage:
    """Raises `MessageBodyError`."""
    read = _Body(body)
    flags = read.number(1)
    read.take(8)
    prefix = read.text()
    read.take(read.number(4))
    read.end()
    return LogicalMessage(prefix, bool(flags & _FLAG_TRANSACTIONAL))
