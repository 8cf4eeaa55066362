"""Tables that a foreign key's action, or a MERGE table, may change in silence.

InnoDB carries out CASCADE and SET NULL below the binary log: of the child's rows nothing is logged but that the
statement had the table open. MySQL logs them from 9.6 on, unless innodb_native_foreign_keys is on. So it is with what
is written through a table of engine MRG_MyISAM: the log has it as that table's rows, and only announces the MyISAM
tables that hold them.

MariaDB's log announces such a child beside its parent; MySQL's announces the parent alone.

Comes in: names of tables. Goes out: what such keys and unions are on them now; asked of the server once, and again
after a statement that names the table. Nothing is durable. A MERGE table that this user may not see is not seen.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.ddl.derived import names_in
from agent.sources.mysql.server.connection import Facts, connect, rows, server_errors
from agent.table_positions import Table

#: of SHOW CREATE TABLE, which needs no privilege beyond SELECT, unlike information_schema's constraints
_NAME = r"`(?:[^`]|``)+`"
_KEY = re.compile(
    rf"CONSTRAINT (?P<name>{_NAME}) FOREIGN KEY \((?P<columns>{_NAME}(?:, ?{_NAME})*)\)"
    rf" REFERENCES (?:(?P<database>{_NAME})\.)?(?P<table>{_NAME}) \((?P<parents>{_NAME}(?:, ?{_NAME})*)\)"
    r"(?P<actions>(?: ON (?:DELETE|UPDATE) (?:CASCADE|RESTRICT|NO ACTION|SET NULL|SET DEFAULT))*)"
)
_ACTION = re.compile(r"ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT)")
_COLUMNS = """
    SELECT column_name, column_type, collation_name, column_key, generation_expression FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s
"""
#: MySQL shows them to who may read the child
_FOLLOWERS = """
    SELECT constraint_schema, table_name, unique_constraint_schema, referenced_table_name, delete_rule, update_rule
    FROM information_schema.referential_constraints
    WHERE delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL')
"""
_ACTING = ("CASCADE", "SET NULL")
_VERSIONED = re.compile(r"\bWITH SYSTEM VERSIONING\b")
_MYISAM = re.compile(r"\) ENGINE=MyISAM\b")
_UNION = re.compile(rf"\bUNION=\((?P<tables>(?:{_NAME}|[.,])*)\)")
_UNITED = re.compile(rf"(?:(?P<database>{_NAME})\.)?(?P<table>{_NAME})")
_MERGE_TABLES = "SELECT table_schema, table_name FROM information_schema.tables WHERE UPPER(engine) = 'MRG_MYISAM'"
#: a MERGE table that can't be opened now, which PyMySQL has no name for
_ER_WRONG_MRG_TABLE = 1168
_HIDDEN = (ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, _ER_WRONG_MRG_TABLE)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)


class Action(StrEnum):
    """What a key does to a child's rows."""

    NONE = ""
    CASCADE = "CASCADE"
    SET_NULL = "SET NULL"
    SET_DEFAULT = "SET DEFAULT"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key of a child as the server shows it."""

    name: str
    columns: tuple[str, ...]
    parent: Table
    parent_columns: tuple[str, ...]
    on_delete: Action = Action.NONE
    on_update: Action = Action.NONE

    @property
    def acts(self) -> bool:
        return bool(self.on_delete or self.on_update)

    @property
    def changes_values(self) -> bool:
        """Of rows that stay."""
        return bool(self.on_update) or self.on_delete not in (Action.NONE, Action.CASCADE)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a child or a parent."""

    #: as information_schema writes it
    type: str
    #: "": it holds no text
    collation: str
    is_primary: bool
    #: the columns that it is computed from, in lower case
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """What can change a table's rows without row events."""

    #: all, also those without an action
    keys: tuple[ForeignKey, ...] = ()
    #: a MERGE table may hold it, or nobody may see how it looks
    is_uncertain: bool = False
    #: its rows have former versions, which are rows too
    is_versioned: bool = False
    #: the server logs what keys do
    are_logged: bool = False


class Follows(NamedTuple):
    """A table that may change with another one."""

    table: Table
    on_delete: bool
    on_update: bool


class Cascades:
    """Of one stream's server."""

    def __init__(self, source: str, server: ServerConfig, facts: Facts) -> None:
        self._source = source
        self._server = server
        self._are_logged = facts.logs_cascades
        self._announces = facts.flavor == "mariadb"
        self._asked: dict[Table, Keys] = {}
        self._columns: dict[Table, dict[str, KeyColumn]] = {}
        #: by parent, in lower case
        self._followers: dict[Table, list[Follows]] | None = None

    def of(self, table: Table) -> Keys:
        """Raises a `SourceError`."""
        if table not in self._asked:
            with self._connection() as connection:
                self._asked[table] = self._ask(connection, table)
        return self._asked[table]

    def known(self, table: Table) -> Keys | None:
        """What was asked before."""
        return self._asked.get(table)

    def columns(self, table: Table) -> dict[str, KeyColumn]:
        """The table's columns now, by their lower-case names. Raises a `SourceError`."""
        if table not in self._columns:
            with self._connection() as connection:
                found = rows(connection, _COLUMNS, table)
            names = [str(row[0]) for row in found]
            self._columns[table] = {
                str(name).lower(): KeyColumn(
                    str(type_), str(collation or ""), str(key) == "PRI", names_in(str(expression or ""), names)
                )
                for name, type_, collation, key, expression in found
            }
        return self._columns[table]

    def children_of(self, table: Table) -> list[Table]:
        """Those that were asked about and have a key to this one."""
        lowered = _lowered(table)
        return [
            child for child, found in self._asked.items() if any(_lowered(key.parent) == lowered for key in found.keys)
        ]

    @property
    def are_announced(self) -> bool:
        """Whether the log announces each table that a key may act on, or has what it does."""
        return self._are_logged or self._announces

    def unannounced_below(self, table: Table) -> list[Follows]:
        """The tables that a change of this one may change, however far, and that the log does not announce with it.

        Which kinds of changes do is what the keys to this very table say. Raises a `SourceError`.
        """
        if self.are_announced:
            return []
        if self._followers is None:
            self._followers = self._ask_followers()
        found: dict[Table, Follows] = {}
        left = list(self._followers.get(_lowered(table), ()))
        while left:
            near = left.pop()
            known = found.get(near.table, Follows(near.table, False, False))
            both = Follows(near.table, known.on_delete or near.on_delete, known.on_update or near.on_update)
            if both != found.get(near.table):
                found[near.table] = both
                below = self._followers.get(_lowered(near.table), ())
                left += [Follows(each.table, near.on_delete, near.on_update) for each in below]
        return list(found.values())

    def united_in(self, names: Iterable[Table]) -> set[Table]:
        """The tables that hold the rows of these, where they are MERGE tables; lower case. Raises a `SourceError`."""
        with self._connection() as connection:
            return {table for name in names for table in _united(name, _shown(connection, name) or "")}

    def definition_changed(self, table: Table) -> None:
        """It may have other keys from here on."""
        self._asked.pop(table, None)
        self._followers = None
        self._columns.pop(table, None)

    @contextmanager
    def _connection(self) -> Iterator["Connection[Any]"]:
        doing = "reading foreign keys and unions of tables"
        with (
            closing(connect(self._server, self._source)) as connection,
            server_errors(doing, self._server, self._source, "SELECT"),
        ):
            rows(connection, "SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1")
            yield connection

    def _ask_followers(self) -> dict[Table, list[Follows]]:
        found: dict[Table, list[Follows]] = {}
        with self._connection() as connection:
            for database, name, above_database, above, on_delete, on_update in rows(connection, _FOLLOWERS):
                follows = Follows((str(database), str(name)), on_delete in _ACTING, on_update in _ACTING)
                found.setdefault(_lowered((str(above_database), str(above))), []).append(follows)
        return found

    def _ask(self, connection: "Connection[Any]", table: Table) -> Keys:
        shown = _shown(connection, table)
        if shown is None or (_MYISAM.search(shown) and _may_be_united(connection, table)):
            return Keys(is_uncertain=shown is not None or not self._are_logged, are_logged=self._are_logged)
        is_versioned = _VERSIONED.search(shown) is not None
        return Keys(_keys(table, shown), is_versioned=is_versioned, are_logged=self._are_logged)


def followed_tables(connection: "Connection[Any]", table: Table) -> frozenset[Table]:
    """The tables that this one's keys follow, however far, and that follow others themselves; not the table."""
    parents: dict[Table, list[Table]] = {}
    left = [table]
    while left:
        near = left.pop()
        if near not in parents:
            shown = _shown(connection, near)
            parents[near] = [key.parent for key in _keys(near, shown or "") if key.acts]
            left += parents[near]
    return frozenset(near for near, above in parents.items() if above and near != table)


def _may_be_united(connection: "Connection[Any]", table: Table) -> bool:
    """Whether a MERGE table holds it."""
    merges = [(str(database), str(name)) for database, name in rows(connection, _MERGE_TABLES)]
    shown = ((name, _shown(connection, name)) for name in merges)
    return any(text is None or _lowered(table) in _united(name, text) for name, text in shown)


def _united(merge: Table, shown: str) -> set[Table]:
    """The tables that hold its rows; lower case."""
    unions = (found["tables"] for found in _UNION.finditer(shown))
    return {_lowered(_named(table, merge[0])) for union in unions for table in _UNITED.finditer(union)}


def _keys(table: Table, shown: str) -> tuple[ForeignKey, ...]:
    """The keys that the statement which makes the table names."""
    found = []
    for key in _KEY.finditer(shown):
        actions = {event: Action(action) for event, action in _ACTION.findall(key["actions"])}
        found.append(
            ForeignKey(
                _unquoted(key["name"]),
                tuple(_unquoted(name) for name in re.findall(_NAME, key["columns"])),
                _named(key, table[0]),
                tuple(_unquoted(name) for name in re.findall(_NAME, key["parents"])),
                actions.get("DELETE", Action.NONE),
                actions.get("UPDATE", Action.NONE),
            )
        )
    return tuple(found)


def _shown(connection: "Connection[Any]", table: Table) -> str | None:
    """The statement that makes the table; empty: there is none; None: it is hidden."""
    name = ".".join("`" + part.replace("`", "``") + "`" for part in table)
    try:
        return str(rows(connection, f"SHOW CREATE TABLE {name}")[0][1])
    except pymysql.err.MySQLError as refused:
        if refused.args[0] in _HIDDEN:
            return None
        if refused.args[0] in _GONE:
            return ""
        raise


def _named(found: re.Match[str], database: str) -> Table:
    return _unquoted(found["database"]) if found["database"] else database, _unquoted(found["table"])


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _lowered(table: Table) -> Table:
    return table[0].lower(), table[1].lower()
