"""Tables that a foreign key's action may change in silence.

InnoDB carries out CASCADE, SET NULL and SET DEFAULT below the binary log: of the child's rows nothing is logged but
that the statement had the table open. MySQL logs them from 9.6 on, unless innodb_native_foreign_keys is on. Comes in:
names of tables. Goes out: what such keys are on them now; asked of the server once, and again after a change of a
table's definition. Nothing is durable. A key that was dropped before its rows are read is not seen.
"""

import re
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.config import ServerConfig
from agent.mysql.connection import Facts, connect, rows, server_errors
from agent.mysql.progress import Table

#: of SHOW CREATE TABLE, which needs no privilege beyond SELECT, unlike information_schema's constraints
_NAME = r"`(?:[^`]|``)+`"
_KEY = re.compile(
    rf"FOREIGN KEY \({_NAME}(?:, ?{_NAME})*\) REFERENCES (?:(?P<database>{_NAME})\.)?(?P<table>{_NAME})"
    rf" \({_NAME}(?:, ?{_NAME})*\)(?P<actions>(?: ON (?:DELETE|UPDATE) [A-Z]+(?: [A-Z]+)?)*)"
)
_ACTION = re.compile(r"ON (DELETE|UPDATE) (?:CASCADE|SET)")
_HIDDEN = (ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)


@dataclass(frozen=True, slots=True)
class Actions:
    """What changes rows of a table without row events."""

    #: a row of another table is deleted, or updated
    on_delete: bool = False
    on_update: bool = False
    #: a row of its own is deleted, which others refer to, directly or through other tables
    of_itself: bool = False


class Cascades:
    """Of one stream's server."""

    def __init__(self, source: str, server: ServerConfig, facts: Facts) -> None:
        self._source = source
        self._server = server
        self._are_logged = facts.logs_cascades
        self._asked: dict[Table, Actions] = {}

    def of(self, table: Table) -> Actions:
        """Raises a `SourceError`."""
        if self._are_logged:
            return Actions()
        if table not in self._asked:
            self._asked[table] = self._ask(table)
        return self._asked[table]

    def definition_changed(self, table: Table) -> None:
        """It may have other keys from here on."""
        self._asked.pop(table, None)

    def _ask(self, table: Table) -> Actions:
        with (
            closing(connect(self._server, self._source)) as connection,
            server_errors("reading foreign keys", self._server, self._source, "SELECT"),
        ):
            rows(connection, "SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1")
            keys = _keys(connection, table)
            if keys is None:  # then they have to be assumed
                return Actions(on_delete=True, on_update=True, of_itself=True)
            actions = {action for _, found in keys for action in found}
            return Actions("DELETE" in actions, "UPDATE" in actions, _comes_back(connection, table))


def _comes_back(connection: "Connection[Any]", table: Table) -> bool:
    """Whether a row that is deleted may in the end change others of the same table, as far as can be seen."""
    seen: set[Table] = set()
    left = [table]
    while left:
        keys = _keys(connection, left.pop())
        parents = {parent for parent, actions in keys or () if "DELETE" in actions}
        if keys is None or _lowered(table) in map(_lowered, parents):
            return True
        left += parents - seen
        seen |= parents
    return False


def _keys(connection: "Connection[Any]", table: Table) -> list[tuple[Table, set[str]]] | None:
    """The table that each key refers to, and which of DELETE and UPDATE there change rows here; None: hidden."""
    name = ".".join("`" + part.replace("`", "``") + "`" for part in table)
    try:
        shown = rows(connection, f"SHOW CREATE TABLE {name}")
    except pymysql.err.MySQLError as refused:
        if refused.args[0] in _HIDDEN:
            return None
        if refused.args[0] in _GONE:
            return []
        raise
    return [
        (
            (_unquoted(key["database"]) if key["database"] else table[0], _unquoted(key["table"])),
            set(_ACTION.findall(key["actions"])),
        )
        for key in _KEY.finditer(str(shown[0][1]))
    ]


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _lowered(table: Table) -> Table:
    return table[0].lower(), table[1].lower()
