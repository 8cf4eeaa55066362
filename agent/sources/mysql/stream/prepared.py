"""Where the XA transactions of one source were prepared that have not ended: a small SQLite file.

Comes in, before each cut that is sent while there are such transactions: those that were prepared and those that
ended since the last one. Goes out, when a stream begins: where each transaction was prepared that is still open there.

Durable: one file per source in the agent's state folder,

::

    read       position: up to here nothing was missed   (a position is as `schema.versions` writes it)
    prepared   xid; gtid, server_uuid, file, offset of the group that prepared it;
               ended, ended_gtid, ended_file, ended_offset: cut and group that ended it, null: open

Written in one SQLite transaction before the cut is sent: after a kill the file is at or past the last committed cut,
and what is past it is undone when the stream begins anew. Nothing in it is needed to be right: a file that is lost,
broken or behind is begun anew, and the log is searched instead.
"""

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.positions import PositionsUnordered
from agent.runtime.state_folder import make_state_folder, state_unusable
from agent.sources.mysql.log.xid import Xid
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, no_gtids
from agent.sources.mysql.schema.versions import RecordUnreadable, position_of, position_text

log = logging.getLogger("menura.prepared")

FORMAT = 1
#: SQLite's mark of whose file it is: "Menp"
APPLICATION_ID = 0x4D656E70
#: cuts after which one that is not committed is as good as none; asked for too late, the log is searched
KEPT_CUTS = 256

_TABLES = """
    CREATE TABLE read (position TEXT NOT NULL);
    CREATE TABLE prepared (xid BLOB PRIMARY KEY, gtid TEXT NOT NULL, server_uuid TEXT NOT NULL, file TEXT NOT NULL,
                           offset INTEGER NOT NULL, ended INTEGER, ended_gtid TEXT, ended_file TEXT,
                           ended_offset INTEGER) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Group:
    """A transaction of the log, by its begin."""

    #: '' where the server has none
    gtid: str
    server_uuid: str
    file: str
    #: of its first event
    offset: int

    def is_same(self, other: "Group") -> bool:
        if self.gtid or other.gtid:
            return self.gtid == other.gtid
        return (self.file, self.offset) == (other.file, other.offset)

    def is_in(self, position: BinlogPosition) -> bool:
        return position.has_transaction(self.gtid, self.file, self.offset)


class PreparedFile:
    """One source's file; used by one thread."""

    def __init__(self, folder: Path, source: str) -> None:
        """Open or make it; raises `StateFolderUnusable`."""
        self._path = folder / f"{source}.prepared.sqlite"
        self._source = source
        make_state_folder(folder, source)
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as broken:
            self._begin_anew(broken)

    def close(self) -> None:
        self._connection.close()

    def begin(self, start: BinlogPosition, position_kind: BinlogPositionKind) -> dict[Xid, Group]:
        """A stream begins at `start`: the transactions that are prepared there and have not ended."""
        try:
            with self._connection:
                if not self._was_read(start, position_kind):
                    self._connection.execute("DELETE FROM prepared")
                for xid, prepared, ended in self._all():
                    if not prepared.is_in(start) or (ended is not None and ended.is_in(start)):
                        self._connection.execute("DELETE FROM prepared WHERE xid = ?", (xid,))
                self._connection.execute("UPDATE prepared SET ended = NULL")
                self._read_to(start)
                return {_decoded(xid): prepared for xid, prepared, _ in self._all()}
        except (sqlite3.DatabaseError, ValueError, TypeError) as broken:
            self._begin_anew(broken)
            return self.begin(start, position_kind)

    def record(
        self, position: BinlogPosition, cut: int, prepared: Mapping[Xid, Group], ended: Mapping[Xid, Group]
    ) -> None:
        """The cut that is about to be sent ends at `position`; these were prepared and have ended since the last."""
        try:
            with self._connection:
                self._connection.executemany(
                    "INSERT OR REPLACE INTO prepared (xid, gtid, server_uuid, file, offset) VALUES (?, ?, ?, ?, ?)",
                    [(_encoded(xid), at.gtid, at.server_uuid, at.file, at.offset) for xid, at in prepared.items()],
                )
                self._connection.executemany(
                    "UPDATE prepared SET ended = ?, ended_gtid = ?, ended_file = ?, ended_offset = ? WHERE xid = ?",
                    [(cut, at.gtid, at.file, at.offset, _encoded(xid)) for xid, at in ended.items()],
                )
                self._connection.execute("DELETE FROM prepared WHERE ended < ?", (cut - KEPT_CUTS,))
                self._read_to(position)
        except sqlite3.Error as broken:
            raise state_unusable(self._path, str(broken), self._source) from broken

    def _was_read(self, start: BinlogPosition, position_kind: BinlogPositionKind) -> bool:
        """Whether everything up to `start` has gone by: else a transaction may have ended unseen."""
        found = self._connection.execute("SELECT position FROM read").fetchone()
        if found is None:
            return False
        try:
            position = position_of(_with_scheme(found[0], position_kind))
            if position_kind is BinlogPositionKind.FILE:
                position = replace(position, gtids=None)
            return position.is_comparable(start) and position.covers(start)
        except (RecordUnreadable, PositionsUnordered, ValueError):
            return False

    def _read_to(self, position: BinlogPosition) -> None:
        self._connection.execute("DELETE FROM read")
        self._connection.execute("INSERT INTO read VALUES (?)", (position_text(position),))

    def _all(self) -> Iterable[tuple[bytes, Group, Group | None]]:
        for xid, gtid, uuid, file, offset, ended, *end in self._connection.execute("SELECT * FROM prepared").fetchall():
            ended_by = Group(end[0], uuid, end[1], end[2]) if ended is not None else None
            yield xid, Group(gtid, uuid, file, offset), ended_by

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self._path)
        except sqlite3.Error as refused:
            raise state_unusable(self._path, str(refused), self._source) from refused
        try:
            self._path.chmod(0o600)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _make_tables(connection)
        except sqlite3.OperationalError as refused:
            connection.close()
            raise state_unusable(self._path, str(refused), self._source) from refused
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_anew(self, broken: Exception) -> None:
        """The file can't be ours: what it knew is found in the log."""
        fields = {"source": self._source, "file": self._path, "found": str(broken)}
        log.warning("the list of prepared XA transactions can't be used: it is made anew", extra={"fields": fields})
        if hasattr(self, "_connection"):
            self._connection.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._connection = self._open()


def _make_tables(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if (version, owner) == (0, 0):
        marks = f"PRAGMA user_version = {FORMAT}; PRAGMA application_id = {APPLICATION_ID}"
        connection.executescript(f"BEGIN; {_TABLES} {marks}; COMMIT")
    elif (version, owner) != (FORMAT, APPLICATION_ID):
        raise sqlite3.DatabaseError(f"format {version} of application {owner}")


def _encoded(xid: Xid) -> bytes:
    """4 format   1 length of gtrid   gtrid   bqual"""
    return xid.format_id.to_bytes(4, "little") + bytes([len(xid.gtrid)]) + xid.gtrid + xid.bqual


def _decoded(encoded: bytes) -> Xid:
    at = 5 + encoded[4]
    return Xid(int.from_bytes(encoded[:4], "little"), encoded[5:at], encoded[at:])


def _with_scheme(text: str, position_kind: BinlogPositionKind) -> str:
    """Earlier versions did not write what kind of GTIDs a position has: those of the server that it is read for."""
    facts = json.loads(text)
    if isinstance(facts, dict) and "scheme" not in facts:
        facts["scheme"] = type(no_gtids(position_kind)).__name__
    return json.dumps(facts)
