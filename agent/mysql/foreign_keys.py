"""Tables that a foreign key's action may change in silence.

InnoDB carries out CASCADE, SET NULL and SET DEFAULT below the binary log: of the child's rows nothing is logged but
that the statement had the table open. MySQL logs them from 9.6 on, unless innodb_native_foreign_keys is on. Comes in:
names of tables. Goes out: whether such a key is on it now; asked of the server once, and again after a change of its
definition. Nothing is durable. A key that was dropped before its rows are read is not seen.
"""

import re
from contextlib import closing

import pymysql
from pymysql.constants import ER

from agent.config import ServerConfig
from agent.mysql.connection import Facts, connect, rows, server_errors
from agent.mysql.progress import Table

#: a line of SHOW CREATE TABLE, which needs no privilege beyond SELECT, unlike information_schema's constraints
_ACTION = re.compile(r"^\s*CONSTRAINT .* FOREIGN KEY .* ON (DELETE|UPDATE) (CASCADE|SET (NULL|DEFAULT))", re.MULTILINE)
_HIDDEN = (ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)


class Cascades:
    """Of one stream's server."""

    def __init__(self, source: str, server: ServerConfig, facts: Facts) -> None:
        self._source = source
        self._server = server
        self._are_logged = facts.logs_cascades
        self._asked: dict[Table, bool] = {}

    def may_change(self, table: Table) -> bool:
        """Whether rows of the table may change without row events. Raises a `SourceError`."""
        if self._are_logged:
            return False
        if table not in self._asked:
            self._asked[table] = self._ask(table)
        return self._asked[table]

    def definition_changed(self, table: Table) -> None:
        """It may have other keys from here on."""
        self._asked.pop(table, None)

    def _ask(self, table: Table) -> bool:
        name = ".".join("`" + part.replace("`", "``") + "`" for part in table)
        with (
            closing(connect(self._server, self._source)) as connection,
            server_errors("reading foreign keys", self._server, self._source, "SELECT"),
        ):
            try:
                shown = rows(connection, f"SHOW CREATE TABLE {name}")
            except pymysql.err.MySQLError as refused:
                if refused.args[0] in _HIDDEN:  # then it has to be assumed
                    return True
                if refused.args[0] in _GONE:
                    return False
                raise
        return _ACTION.search(str(shown[0][1])) is not None
