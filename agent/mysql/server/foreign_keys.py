"""Tables that a foreign key's action, or a MERGE table, may change in silence.

InnoDB carries out CASCADE, SET NULL and SET DEFAULT below the binary log: of the child's rows nothing is logged but
that the statement had the table open. MySQL logs them from 9.6 on, unless innodb_native_foreign_keys is on. So it is
with what is written through a table of engine MRG_MyISAM: the log has it as that table's rows, and only announces the
MyISAM tables that hold them.

Comes in: names of tables. Goes out: what such keys and unions are on them now; asked of the server once, and again
after a statement that names the table. Nothing is durable. A key or a union that was dropped before its rows are read
is not seen, nor a MERGE table that this user may not see.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.config import ServerConfig
from agent.mysql.progress import Table
from agent.mysql.server.connection import Facts, connect, rows, server_errors

#: of SHOW CREATE TABLE, which needs no privilege beyond SELECT, unlike information_schema's constraints
_NAME = r"`(?:[^`]|``)+`"
_KEY = re.compile(
    rf"FOREIGN KEY \({_NAME}(?:, ?{_NAME})*\) REFERENCES (?:(?P<database>{_NAME})\.)?(?P<table>{_NAME})"
    rf" \({_NAME}(?:, ?{_NAME})*\)(?P<actions>(?: ON (?:DELETE|UPDATE) [A-Z]+(?: [A-Z]+)?)*)"
)
_ACTION = re.compile(r"ON (DELETE|UPDATE) (?:CASCADE|SET)")
_MYISAM = re.compile(r"\) ENGINE=MyISAM\b")
_UNION = re.compile(rf"\bUNION=\((?P<tables>(?:{_NAME}|[.,])*)\)")
_UNITED = re.compile(rf"(?:(?P<database>{_NAME})\.)?(?P<table>{_NAME})")
_MERGE_TABLES = "SELECT table_schema, table_name FROM information_schema.tables WHERE UPPER(engine) = 'MRG_MYISAM'"
#: a MERGE table that can't be opened now, which PyMySQL has no name for
_ER_WRONG_MRG_TABLE = 1168
_HIDDEN = (ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, _ER_WRONG_MRG_TABLE)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)


@dataclass(frozen=True, slots=True)
class Actions:
    """What changes rows of a table without row events."""

    #: a row of another table is deleted, or updated
    on_delete: bool = False
    on_update: bool = False
    #: a row of its own is deleted, which others refer to, directly or through other tables
    of_itself: bool = False


#: what has to be assumed of a table
_ANY = Actions(on_delete=True, on_update=True, of_itself=True)


class Cascades:
    """Of one stream's server."""

    def __init__(self, source: str, server: ServerConfig, facts: Facts) -> None:
        self._source = source
        self._server = server
        self._are_logged = facts.logs_cascades
        self._asked: dict[Table, Actions] = {}

    def of(self, table: Table) -> Actions:
        """Raises a `SourceError`."""
        if table not in self._asked:
            with self._connection() as connection:
                self._asked[table] = self._ask(connection, table)
        return self._asked[table]

    def united_in(self, names: Iterable[Table]) -> set[Table]:
        """The tables that hold the rows of these, where they are MERGE tables; lower case. Raises a `SourceError`."""
        with self._connection() as connection:
            return {table for name in names for table in _united(name, _shown(connection, name) or "")}

    def definition_changed(self, table: Table) -> None:
        """It may have other keys from here on."""
        self._asked.pop(table, None)

    @contextmanager
    def _connection(self) -> Iterator["Connection[Any]"]:
        doing = "reading foreign keys and unions of tables"
        with (
            closing(connect(self._server, self._source)) as connection,
            server_errors(doing, self._server, self._source, "SELECT"),
        ):
            rows(connection, "SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1")
            yield connection

    def _ask(self, connection: "Connection[Any]", table: Table) -> Actions:
        shown = _shown(connection, table)
        if shown and _MYISAM.search(shown) and _may_be_united(connection, table):
            return _ANY
        if self._are_logged:
            return Actions()
        if shown is None:
            return _ANY
        actions = {action for _, found in _keys(table, shown) for action in found}
        return Actions("DELETE" in actions, "UPDATE" in actions, _comes_back(connection, table))


def _comes_back(connection: "Connection[Any]", table: Table) -> bool:
    """Whether a row that is deleted may in the end change others of the same table, as far as can be seen."""
    seen: set[Table] = set()
    left = [table]
    while left:
        child = left.pop()
        shown = _shown(connection, child)
        if shown is None:
            return True
        parents = {parent for parent, actions in _keys(child, shown) if "DELETE" in actions}
        if _lowered(table) in map(_lowered, parents):
            return True
        left += parents - seen
        seen |= parents
    return False


def _may_be_united(connection: "Connection[Any]", table: Table) -> bool:
    """Whether a MERGE table holds it."""
    merges = [(str(database), str(name)) for database, name in rows(connection, _MERGE_TABLES)]
    shown = ((name, _shown(connection, name)) for name in merges)
    return any(text is None or _lowered(table) in _united(name, text) for name, text in shown)


def _united(merge: Table, shown: str) -> set[Table]:
    """The tables that hold its rows; lower case."""
    unions = (found["tables"] for found in _UNION.finditer(shown))
    return {_lowered(_named(table, merge[0])) for union in unions for table in _UNITED.finditer(union)}


def _keys(table: Table, shown: str) -> list[tuple[Table, set[str]]]:
    """The table that each key refers to, and which of DELETE and UPDATE there change rows here."""
    return [(_named(key, table[0]), set(_ACTION.findall(key["actions"]))) for key in _KEY.finditer(shown)]


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
