"""Tables of another MySQL or MariaDB that follow the lake's: a pipe from any source to a database.

Comes in: changes. Goes out: rows of tables of the same names, each by its key; of a table without one equal rows.
Rows and position (table `menura_position`) are committed together behind each cut, so each change counts once, and
readers there see cuts. A table that is missing is made with the source's types, and gets columns that the source's has
got; where it is there, it is used as it is, and columns that the source no longer has keep their values.

Options: host, port, user, password (`env:NAME` or `file:PATH`: it is read there, at each login), database; ssl_ca, or
`tls = "off"` within a trusted network. Needs the package pymysql (menura[mysql]).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pymysql
from pymysql.connections import Connection
from pymysql.converters import escape_string

from spark_sink.plugins.plugin import Change, PluginError, TransactionalPlugin, Values, without_values
from spark_sink.plugins.secrets import SecretMissing, resolved
from spark_sink.work import TableId

TIMEOUT_SECONDS = 60
#: a server may take so long to see that a run before has gone
LOCK_SECONDS = 60
#: strict, and with all dates that a source may have
SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OPTIONS = {"host", "port", "user", "password", "database", "ssl_ca", "tls", "name"}
_NEEDED = {"host", "user", "password", "database"}
_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"
_TYPE = re.compile(r"[a-z][a-z ]{0,40}(\(\d{1,5}(, ?\d{1,5})?\))?( [a-z]{1,20}){0,3}", re.IGNORECASE)
_LABELS = re.compile(r"(enum|set)\(('(?:[^']|'')*'(?:,'(?:[^']|'')*')*)\)", re.IGNORECASE)
_LABEL = re.compile(r"'((?:[^']|'')*)'")


class MySQLTables(TransactionalPlugin):
    reads_references = True

    def __init__(self, options: Mapping[str, str]) -> None:
        if unknown := set(options) - _OPTIONS:
            raise PluginError(f"{', '.join(sorted(unknown))}: no option; there are {', '.join(sorted(_OPTIONS))}")
        if missing := _NEEDED - set(options):
            raise PluginError(f"{', '.join(sorted(missing))}: missing")
        self._options = options
        self._password()
        self._is_local = options["host"] in _LOOPBACK
        if not (self._is_local or "ssl_ca" in options or options.get("tls") == "off"):
            raise PluginError("give ssl_ca, the file with the server's authority; or tls = 'off' in a trusted network")
        self._name = options["name"]
        self._names: dict[str, TableId] = {}
        self._open: Connection | None = None

    def position(self) -> str | None:
        self.close()
        self._run("CREATE TABLE IF NOT EXISTS menura_position (name VARCHAR(64) PRIMARY KEY, text LONGTEXT)", [])
        found = self._rows("SELECT text FROM menura_position WHERE name = %s", [self._name])
        return str(found[0][0]) if found else None

    def ddl(self, table: TableId, columns: Mapping[str, str], key: Sequence[str]) -> None:
        if (other := self._names.setdefault(table.table.lower(), table)) != table:
            raise PluginError(f"{other} and {table} have one name: give one of them a pipe into another database")
        known = {str(row[0]).lower() for row in self._rows(_COLUMNS, [table.table])}
        new = [name for name in columns if name.lower() not in known]
        parts = [_column(table, name, columns[name], in_key=name in key) for name in new]
        name = quoted(table.table)
        if not known:
            parts += [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
            self._run(f"CREATE TABLE {name} ({', '.join(parts)}) CHARACTER SET utf8mb4 COLLATE {self._collation()}", [])
        elif parts:
            self._run(f"ALTER TABLE {name} {', '.join(f'ADD COLUMN {part}' for part in parts)}", [])

    def _collation(self) -> str:
        """By which texts are equal that are the same: those of two keys must not become one."""
        is_mariadb = "mariadb" in str(self._rows("SELECT VERSION()", [])[0][0]).lower()
        return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"

    def insert(self, row: Values, change: Change) -> None:
        if change.unknown:
            raise PluginError(without_values(change))
        self._put(row, change)

    def _put(self, row: Values, change: Change) -> None:
        names = list(map(quoted, row))
        statement = (
            f"INSERT INTO {quoted(change.table.table)} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(row))})"
        )
        if change.key is not None:
            statement += f" ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in names)}"
        self._run(statement, row.values())

    def update_before(self, row: Values, change: Change) -> None:
        if change.key is None:
            self.delete(row, change)

    def update_after(self, row: Values, change: Change) -> None:
        if not change.unknown or change.key is None:
            self._put(row, change)
            return
        known = {name: value for name, value in row.items() if name not in change.unknown}
        values = ", ".join(f"{quoted(name)} = %s" for name in known)
        self._run(
            f"UPDATE {quoted(change.table.table)} SET {values} WHERE {_equal(change.key)}",
            [*known.values(), *change.key.values()],
        )

    def delete(self, row: Values, change: Change) -> None:
        """Of a table without a key one equal row."""
        found = row if change.key is None else change.key
        statement = f"DELETE FROM {quoted(change.table.table)} WHERE {_equal(found)} LIMIT 1"
        if self._run(statement, found.values()) != 1 and change.key is None:
            raise PluginError(
                f"{change.table.table} has no key, and no row that equals the one that went at {change.gsn}: others"
                " have changed it, or floating point numbers in it do not compare. Give it a key at its source"
            )

    def truncate(self, change: Change) -> None:
        self._run(f"DELETE FROM {quoted(change.table.table)}", [])

    def checkpoint(self, position: str) -> None:
        self._run("REPLACE INTO menura_position VALUES (%s, %s)", [self._name, position])
        with self._said():
            self._connection().commit()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _run(self, statement: str, values: Iterable[object]) -> int:
        with self._said(), self._connection().cursor() as cursor:
            return int(cursor.execute(statement, list(values)))

    def _rows(self, statement: str, values: Iterable[object]) -> Sequence[Sequence[object]]:
        with self._said(), self._connection().cursor() as cursor:
            cursor.execute(statement, list(values))
            return list(cursor.fetchall())

    @contextmanager
    def _said(self) -> Iterator[None]:
        """The server's number says what failed; its text may hold values of rows."""
        try:
            yield
        except pymysql.MySQLError as failure:
            host, port = self._options["host"], self._options.get("port", "3306")
            number = failure.args[0] if failure.args and isinstance(failure.args[0], int) else type(failure).__name__
            raise PluginError(f"{host}:{port} answered with error {number}, or could not be reached") from failure

    def _connection(self) -> Connection:
        if self._open is None:
            options = self._options
            self._open = pymysql.connect(
                host=options["host"],
                port=int(options.get("port", "3306")),
                user=options["user"],
                password=self._password(),
                database=options["database"],
                charset="utf8mb4",
                ssl_ca=options.get("ssl_ca"),
                ssl_verify_identity=True if "ssl_ca" in options else None,
                ssl_disabled=True if "ssl_ca" not in options else None,
                init_command=f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', lock_wait_timeout = 60",
                connect_timeout=TIMEOUT_SECONDS,
                read_timeout=TIMEOUT_SECONDS * 10,
                write_timeout=TIMEOUT_SECONDS * 10,
            )
            self._take()
        return self._open

    def _password(self) -> str:
        """As it is now."""
        try:
            return resolved(self._options["password"])
        except SecretMissing as missing:
            raise PluginError(f"the password: {missing}") from missing

    def _take(self) -> None:
        """The position's name, while the connection lasts: two runs would do everything twice."""
        ((is_taken,),) = self._rows("SELECT GET_LOCK(CONCAT('menura_', %s), %s)", [self._name, LOCK_SECONDS])
        if is_taken != 1:
            self.close()
            raise PluginError(f"another run writes to {self._options['database']} under the name {self._name}")


def quoted(name: str) -> str:
    """An identifier, also within a statement that takes values.

    >>> quoted("a`b%")
    '`a``b%%`'
    """
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def _equal(values: Values) -> str:
    return " AND ".join(f"{quoted(name)} <=> %s" for name in values)


def _column(table: TableId, name: str, word: str, *, in_key: bool) -> str:
    """With the source's type, as a statement may have it: its text comes from afar."""
    labels = _LABELS.fullmatch(word)
    if labels is not None:
        found = (label.replace("''", "'") for label in _LABEL.findall(labels[2]))
        texts = ("'" + escape_string(label).replace("%", "%%") + "'" for label in found)
        word = f"{labels[1]}({', '.join(texts)})"
    elif _TYPE.fullmatch(word) is None:
        raise PluginError(
            f"the type {word[:60]!r} of {table.table}.{name} can't be used here: create the table, with its columns,"
            " where it is to be, and start again"
        )
    return f"{quoted(name)} {word}{'' if in_key else ' NULL'}"
