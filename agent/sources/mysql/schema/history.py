"""The durable schema history: what the synced tables looked like, by position.

Comes in: definitions, each from the position on from which it holds, as `definitions` finds them out. Goes out, when a
stream begins: what is known of each table where it begins. Knows neither servers nor SQL statements.

Durable: one SQLite file per source in the agent's state folder; a row per table and change, which is dropped once a
committed position has passed the one after it:

::

    facts     format, source; tracked: the stream has been followed up to here; log_files: `log_files`;
              renames: `renames`; earlier [database, name]: how a table looked that has begun anew, until more is known
    tables    database, name; began: its rows were wanted from here on; ended: and no further (null: still wanted)
    versions  database, name; since: position; state: 'known', 'gone' or 'unknown'; definition: JSON, or why not

A table that begins anew is known only when the server has been asked, and a stream may end before. So what was known of
its earlier life is kept until then, as a fact.

Positions and definitions are as `versions` writes them. Rows are written before the cut that they belong to is
sent, in the log's order. A kill leaves rows of cuts that were never committed: `begin` drops them, and reading the log
again makes them again. A crash of the host may take the newest ones: then `tracked` is older too, and `begin` says from
where the log must be looked through for changes. A lost or broken file costs one look through the log; nothing that
it held is needed to be right.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import StateFolderInUse
from agent.positions import PositionsUnordered
from agent.runtime.state_folder import make_state_folder, state_unusable
from agent.sources.mysql.ddl.model import Table, TableDefinition
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.shadow_tables import ShadowTables
from agent.sources.mysql.schema.versions import (
    NEVER_SEEN,
    RecordUnreadable,
    Version,
    decoded,
    encoded,
    position_of,
    position_text,
)

log = logging.getLogger("menura.history")

FORMAT = 1
#: SQLite's mark of whose file it is: "Menu"
APPLICATION_ID = 0x4D656E75
#: another agent's transaction is never long: who waits longer meets one that keeps the file
BUSY_SECONDS = 0.5

_TABLES = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE tables (database TEXT NOT NULL, name TEXT NOT NULL, began TEXT NOT NULL, ended TEXT,
                         PRIMARY KEY (database, name)) WITHOUT ROWID;
    CREATE TABLE versions (number INTEGER PRIMARY KEY, database TEXT NOT NULL, name TEXT NOT NULL, since TEXT NOT NULL,
                           state TEXT NOT NULL, definition TEXT NOT NULL);
    CREATE INDEX versions_of_table ON versions (database, name);
"""
_DROP_FACT = "DELETE FROM facts WHERE name = ?"
_NAMES = frozenset({"facts", "tables", "versions", "versions_of_table"})
#: what a file can't be blamed for
_REFUSALS = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
    }
)


@dataclass(slots=True)
class Begun:
    """What is known where a stream begins."""

    versions: dict[Table, Version] = field(default_factory=dict)
    #: tables whose version is that of an older position: what stands between there and their own must be applied
    behind: dict[Table, BinlogPosition] = field(default_factory=dict)


class HistoryBroken(Exception):
    """The file can't be this source's history; says why."""


class SchemaHistory:
    """One source's file, locked for as long as it is open; used by one thread."""

    def __init__(self, folder: Path, source: str) -> None:
        """Open or make the file; raises `StateFolderInUse` or `StateFolderUnusable`."""
        self._path = folder / f"{source}.history.sqlite"
        self._source = source
        make_state_folder(folder, source)
        try:
            self._connection = self._open()
        except HistoryBroken as broken:
            self._put_aside(str(broken))
            try:
                self._connection = self._open()
            except HistoryBroken as again:
                raise state_unusable(self._path, str(again), source) from again

    def close(self) -> None:
        self._connection.close()

    def earlier(self, table: Table, position: BinlogPosition) -> tuple[TableDefinition, BinlogPosition] | None:
        """How a table looked where it begins anew, and up to where that is known; None: it is not.

        Before `begin`, which finds out whether the file is whole.
        """
        try:
            with self._errors():
                found = self._earlier(table)
                known = next((one for one in found if position.covers(position_of(one[0]))), None)
                if known is None:
                    return None
                _, state, text, end = known
                version = decoded(state, text)
                return (version, position_of(end)) if isinstance(version, TableDefinition) else None
        except (HistoryBroken, RecordUnreadable, PositionsUnordered):
            return None

    def _earlier(self, table: Table) -> list[tuple[str, str, str, str]]:
        """Since when, state, definition, and the life's end: of this life, or of the one before while nothing is known
        of this; the newest first."""
        lives = self._rows("SELECT began, ended FROM tables WHERE database = ? AND name = ?", table)
        statement = "SELECT since, state, definition FROM versions WHERE database = ? AND name = ? ORDER BY number DESC"
        versions = self._rows(statement, table) if lives else []
        if versions:
            end = position_text(self._end(*lives[0]))
            return [(*version, end) for version in versions]
        kept = self.fact(_earlier_fact(table))
        return [_earlier_of(kept)] if kept else []

    def begin(self, start: BinlogPosition, tables: Mapping[Table, BinlogPosition], anew: Collection[Table]) -> Begun:
        """A stream begins at `start`, each table at its own position; of those in `anew` nothing older counts."""
        try:
            with self._errors(), self._connection:
                for table in anew:
                    self._begin_anew(table, tables.get(table))
                for table in tables.keys() - set(anew):
                    self._rows(_DROP_FACT, (_earlier_fact(table),))
                begun = self._begin(start, tables)
                self._put_fact("tracked", position_text(start))
        except (HistoryBroken, RecordUnreadable, PositionsUnordered) as broken:
            self._make_anew(str(broken))
            return self.begin(start, tables, ())
        return begun

    def record(self, position: BinlogPosition, versions: Mapping[Table, Version]) -> None:
        """From `position` on these tables look so."""
        since = position_text(position)
        rows = [(*table, since, *encoded(version)) for table, version in versions.items()]
        self._write("INSERT INTO versions (database, name, since, state, definition) VALUES (?, ?, ?, ?, ?)", rows)
        self._write("INSERT OR IGNORE INTO tables VALUES (?, ?, ?, NULL)", [row[:3] for row in rows])
        self._write(_DROP_FACT, [(_earlier_fact(table),) for table in versions])

    def followed(self, position: BinlogPosition) -> None:
        """All changes up to `position` are recorded."""
        self._write("INSERT OR REPLACE INTO facts VALUES ('tracked', ?)", [(position_text(position),)])

    def keep_log_files(self, text: str) -> None:
        self._write("INSERT OR REPLACE INTO facts VALUES ('log_files', ?)", [(text,)])

    def log_files(self) -> str:
        """As they were kept; empty: they were not."""
        found = self._rows("SELECT value FROM facts WHERE name = 'log_files'")
        return str(found[0][0]) if found else ""

    def keep_fact(self, name: str, text: str) -> None:
        self._write("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(name, text)])

    def fact(self, name: str) -> str:
        """As it was kept; empty: it was not."""
        found = self._rows("SELECT value FROM facts WHERE name = ?", (name,))
        return str(found[0][0]) if found else ""

    def keep_shadow_tables(self, shadow_tables: ShadowTables) -> None:
        self._write("INSERT OR REPLACE INTO facts VALUES ('relatives', ?)", [(shadow_tables.text(),)])

    def shadow_tables(self, synced: Iterable[Table]) -> ShadowTables:
        """As they were kept."""
        found = self._rows("SELECT value FROM facts WHERE name = 'relatives'")
        try:
            return ShadowTables(synced, found[0][0] if found else "")
        except (ValueError, TypeError, KeyError) as broken:
            self._make_anew(f"relatives that can't be read ({type(broken).__name__})")
            return ShadowTables(synced)

    def tables(self) -> list[Table]:
        """All that have ever begun."""
        return [(row[0], row[1]) for row in self._rows("SELECT database, name FROM tables")]

    def ended(self, table: Table, position: BinlogPosition) -> None:
        """The table stopped at `position`: what comes later is not recorded."""
        statement = "UPDATE tables SET ended = ? WHERE database = ? AND name = ?"
        self._write(statement, [(position_text(position), *table)])

    def compact(self, committed: BinlogPosition) -> None:
        """Drop what no stream will ask for again: versions before the one that holds at `committed`."""
        with self._errors(), self._connection:
            for table in {(row[0], row[1]) for row in self._rows("SELECT database, name FROM versions")}:
                self._drop_superseded(table, committed)

    # --- where a stream begins

    def _begin(self, start: BinlogPosition, tables: Mapping[Table, BinlogPosition]) -> Begun:
        begun = Begun()
        known = {(row[0], row[1]): row[2:] for row in self._rows("SELECT database, name, began, ended FROM tables")}
        for table, (began, ended) in known.items():
            end = self._end(began, ended)
            if table not in tables:
                self._rows("UPDATE tables SET ended = ? WHERE database = ? AND name = ?", (position_text(end), *table))
                continue
            self._drop_later(table, tables[table])
            self._drop_superseded(table, tables[table])
            begun.versions[table] = self._newest(table)
            if not end.covers(tables[table]):
                begun.behind[table] = end
        for table, position in tables.items():
            begun.versions.setdefault(table, NEVER_SEEN)
            self._rows("INSERT OR REPLACE INTO tables VALUES (?, ?, ?, NULL)", (*table, position_text(position)))
        return begun

    def _end(self, began: str, ended: str | None) -> BinlogPosition:
        """How far a table's definition was followed."""
        return position_of(ended) if ended else _later(self._tracked(), position_of(began))

    def _tracked(self) -> BinlogPosition | None:
        found = self._rows("SELECT value FROM facts WHERE name = 'tracked'")
        return position_of(found[0][0]) if found else None

    def _newest(self, table: Table) -> Version:
        statement = (
            "SELECT state, definition FROM versions WHERE database = ? AND name = ? ORDER BY number DESC LIMIT 1"
        )
        found = self._rows(statement, table)
        return decoded(*found[0]) if found else NEVER_SEEN

    def _versions(self, table: Table) -> list[tuple[int, BinlogPosition]]:
        """Number and position, the newest first."""
        statement = "SELECT number, since FROM versions WHERE database = ? AND name = ? ORDER BY number DESC"
        return [(row[0], position_of(row[1])) for row in self._rows(statement, table)]

    def _drop_later(self, table: Table, position: BinlogPosition) -> None:
        for number, since in self._versions(table):
            if position.covers(since):
                return
            self._rows("DELETE FROM versions WHERE number = ?", (number,))

    def _drop_superseded(self, table: Table, position: BinlogPosition) -> None:
        for number, since in self._versions(table):
            if position.covers(since):
                self._rows("DELETE FROM versions WHERE database = ? AND name = ? AND number < ?", (*table, number))
                return

    def _begin_anew(self, table: Table, position: BinlogPosition | None) -> None:
        """What is known of the table counts no longer; what was, where it begins, is kept for `earlier`."""
        earlier = self.earlier(table, position) if position is not None else None
        self._rows("DELETE FROM tables WHERE database = ? AND name = ?", table)
        self._rows("DELETE FROM versions WHERE database = ? AND name = ?", table)
        self._rows(_DROP_FACT, (_earlier_fact(table),))
        if earlier is not None and position is not None:
            definition, end = earlier
            facts = (position_text(position), *encoded(definition), position_text(end))
            self._put_fact(_earlier_fact(table), json.dumps(facts))

    # --- the file

    def _open(self) -> sqlite3.Connection:
        with self._errors():
            connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")
            try:
                self._path.chmod(0o600)
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = WAL")
                # In the log's order all the same: a crash of the host takes only the newest rows.
                connection.execute("PRAGMA synchronous = NORMAL")
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    self._check(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite can't do is ours: the disk's or another process's fault, or else the file is broken."""
        try:
            yield
        except (sqlite3.Error, OSError) as broken:
            code = getattr(broken, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN) & 0xFF
            if code == sqlite3.SQLITE_BUSY:
                raise self._in_use() from broken
            if code in _REFUSALS:
                raise state_unusable(self._path, str(broken), self._source) from broken
            raise HistoryBroken(str(broken)) from broken

    def _check(self, connection: sqlite3.Connection) -> None:
        """Whose file it is, and whether it is whole; an empty one becomes ours."""
        owner, format_ = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("INSERT INTO facts VALUES ('source', ?)", (self._source,))
            return
        if (owner, format_) != (APPLICATION_ID, FORMAT):
            raise HistoryBroken(f"it is of application {owner:#x} and format {format_}, expected format {FORMAT}")
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL")}
        if names != _NAMES:
            raise HistoryBroken("it has other tables")
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise HistoryBroken("its pages contradict each other")
        source = connection.execute("SELECT value FROM facts WHERE name = 'source'").fetchone()
        if source != (self._source,):
            raise HistoryBroken("it is of another source")

    def _make_anew(self, why: str) -> None:
        self._connection.close()
        self._put_aside(why)
        self._connection = self._open()

    def _put_aside(self, why: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.{time.time_ns()}")
        fields = {"source": self._source, "file": self._path, "kept_as": aside, "found": why}
        log.warning("schema history can't be used: it is made anew", extra={"fields": fields})
        try:
            self._path.rename(aside)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused

    def _rows(self, statement: str, values: Iterable[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    def _put_fact(self, name: str, value: str) -> None:
        self._rows("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        try:
            with self._errors(), self._connection:
                self._connection.executemany(statement, rows)
        except HistoryBroken as broken:
            raise state_unusable(self._path, str(broken), self._source) from broken

    def _in_use(self) -> StateFolderInUse:
        return StateFolderInUse(
            f"opening {self._path}, where the agent keeps what tables looked like",
            "another process has it open",
            data="Nothing is lost: the log is read again from the last committed cut",
            remedy="Stop the other agent, or give each its own state_folder",
            source=self._source,
        )


def _later(tracked: BinlogPosition | None, began: BinlogPosition) -> BinlogPosition:
    """How far a table was followed: with the stream, or it began beyond it."""
    return tracked if tracked is not None and tracked.covers(began) else began


def _earlier_fact(table: Table) -> str:
    return f"earlier {json.dumps(table)}"


def _earlier_of(text: str) -> tuple[str, str, str, str]:
    """As `_begin_anew` keeps it; raises `RecordUnreadable`."""
    try:
        since, state, definition, end = map(str, json.loads(text))
    except (ValueError, TypeError) as broken:
        raise RecordUnreadable(f"an earlier definition that can't be read ({type(broken).__name__})") from broken
    return since, state, definition, end
