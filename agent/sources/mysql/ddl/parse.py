"""A logged statement, read: recursive descent over its tokens.

Pure: text in, a value of `syntax` out. What this version can't read raises `Unreadable`; what can't concern any
table's columns or rows is told apart by its first words, and the rest of it isn't looked at.
"""

import re
from itertools import islice

from agent.sources.mysql.ddl.cursor import Cursor
from agent.sources.mysql.ddl.lexer import Token, tokens_of, words
from agent.sources.mysql.ddl.model import Server
from agent.sources.mysql.ddl.parse_alter import alter_actions
from agent.sources.mysql.ddl.parse_table import create_table, database_options, key_parts
from agent.sources.mysql.ddl.syntax import (
    AddKey,
    AlterDatabase,
    AlterTable,
    CreateDatabase,
    CreateSequence,
    DropDatabase,
    DropKey,
    DropTables,
    Irrelevant,
    KeySpec,
    Parsed,
    RenameTables,
    TableName,
    TruncateTable,
)

#: after CREATE, ALTER, DROP or RENAME: no table's columns
_OTHER_OBJECTS = words(
    """
    AGGREGATE ALGORITHM CATALOG DEFINER EVENT FUNCTION INSTANCE JSON LIBRARY LOGFILE MASKING PACKAGE PREPARE PROCEDURE
    RESOURCE ROLE SERVER SQL TABLESPACE TRIGGER UNDO USER VIEW
    """
)
_DEFINING = ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE")
_DATABASE_OPTIONS = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "ENCRYPTION", "READ")
_FIRST_TOKENS = 12
#: what stands for something else in another sql_mode: signs, an empty string, types
_DEPENDS_ON_SETTINGS = re.compile(
    r"""["\\\[]|(?<!=)(?<!= )''|\b(?:REAL|TIMESTAMP|DATE|BLOB|CLOB|RAW|NUMBER|VARCHAR2)\b""", re.IGNORECASE
)


def parse(text: str, server: Server, sql_mode: int = 0) -> Parsed:
    """What the statement says; raises `Unreadable`."""
    stream = tokens_of(text, server, sql_mode)
    first = list(islice(stream, _FIRST_TOKENS))
    if _is_irrelevant(first):
        return Irrelevant()
    cursor = Cursor([*first, *stream])
    if cursor.accept("SET", "STATEMENT"):
        _skip_settings(cursor, is_plain=text.isascii() and not _DEPENDS_ON_SETTINGS.search(text))
        if not cursor.sees_any(*_DEFINING):
            return Irrelevant()
    parsed = _statement(cursor)
    cursor.accept(";")
    if not cursor.is_end():
        raise cursor.unreadable("expected the end")
    return parsed


def _is_irrelevant(first: list[Token]) -> bool:
    found = [token.word for token in first]
    if found[:2] == ["SET", "STATEMENT"]:
        return False
    if not found or found[0] not in _DEFINING:
        return True
    at = 1
    if found[at : at + 2] == ["OR", "REPLACE"]:
        at += 2
    if found[at : at + 3] == ["SPATIAL", "REFERENCE", "SYSTEM"]:
        return True
    return found[0] != "TRUNCATE" and at < len(found) and found[at] in _OTHER_OBJECTS


def _statement(cursor: Cursor) -> Parsed:
    word = cursor.next().word
    if word == "CREATE":
        return _create(cursor)
    if word == "ALTER":
        return _alter(cursor)
    if word == "DROP":
        return _drop(cursor)
    if word == "TRUNCATE":
        cursor.accept("TABLE")
        table = cursor.table()
        _skip_wait(cursor)
        if cursor.accept_any("DROP", "REUSE"):  # MariaDB's sql_mode=ORACLE
            cursor.expect("STORAGE")
        return TruncateTable(table)
    return _rename(cursor)


def _skip_settings(cursor: Cursor, *, is_plain: bool) -> None:
    """MariaDB: lock_wait_timeout=1 FOR; the server read the text before it made these settings, and logs these."""
    while not cursor.accept("FOR"):
        if cursor.is_end():
            raise cursor.unreadable("expected FOR")
        if not is_plain and cursor.sees_any("SQL_MODE", "CHARACTER_SET_CLIENT"):
            raise cursor.unreadable("SET STATEMENT was read with other settings than it was logged with")
        cursor.next()


def _create(cursor: Cursor) -> Parsed:
    or_replace = cursor.accept("OR", "REPLACE")
    if cursor.accept_any("DATABASE", "SCHEMA"):
        if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
        name = cursor.name()
        return CreateDatabase(name, if_not_exists, or_replace, database_options(cursor))
    if cursor.accept("TEMPORARY"):
        return _skip_all(cursor)
    if cursor.accept("TABLE"):
        return create_table(cursor, or_replace=or_replace)
    if cursor.accept("SEQUENCE"):
        if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
        table = cursor.table()
        if cursor.accept("AS"):
            raise cursor.unreadable("a sequence's type is not read")
        _skip_all(cursor)
        return CreateSequence(table, if_not_exists, or_replace)
    return _create_index(cursor, or_replace)


def _create_index(cursor: Cursor, or_replace: bool) -> Parsed:
    cursor.accept_any("ONLINE", "OFFLINE")
    kind = cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
    cursor.expect("INDEX")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name()
    uses_hash = _index_type(cursor)
    cursor.expect("ON")
    table = cursor.table()
    parts = key_parts(cursor)
    uses_hash = _index_type(cursor) or uses_hash
    while not cursor.is_end() and not cursor.sees(";"):
        uses_hash = _index_type(cursor) or uses_hash
        if cursor.sees("("):
            cursor.skip_parentheses()
        elif not cursor.is_end():
            cursor.next()
    actions: list[AddKey | DropKey] = []
    if or_replace:
        actions.append(DropKey(name, if_exists=True))
    actions.append(AddKey(KeySpec(False, name, parts, kind == "UNIQUE", if_not_exists, uses_hash)))
    return AlterTable(table, tuple(actions))


def _index_type(cursor: Cursor) -> bool:
    """Whether it is USING HASH."""
    if cursor.accept_any("USING", "TYPE"):
        return cursor.next().word == "HASH"
    return False


def _alter(cursor: Cursor) -> Parsed:
    cursor.accept_any("ONLINE", "OFFLINE")
    ignore = cursor.accept("IGNORE")
    if cursor.accept_any("DATABASE", "SCHEMA"):
        sees_options = cursor.sees("CHAR", "SET") or cursor.sees_any(*_DATABASE_OPTIONS)
        name = "" if sees_options and cursor.peek(1).word != "DEFAULT" else cursor.name()
        if cursor.sees("UPGRADE", "DATA", "DIRECTORY", "NAME"):
            cursor.at += 4
        return AlterDatabase(name, database_options(cursor))
    if cursor.accept("SEQUENCE"):
        return _skip_all(cursor)
    cursor.expect("TABLE")
    if_exists = cursor.accept("IF", "EXISTS")
    table = cursor.table()
    _skip_wait(cursor)
    return AlterTable(table, alter_actions(cursor), if_exists, ignore)


def _drop(cursor: Cursor) -> Parsed:
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.accept("IF", "EXISTS")
        return DropDatabase(cursor.name())
    if cursor.accept("TEMPORARY"):
        return _skip_all(cursor)
    if found := cursor.accept_any("TABLE", "TABLES", "SEQUENCE"):
        cursor.accept("IF", "EXISTS")
        tables = [cursor.table()]
        while cursor.accept(","):
            tables.append(cursor.table())
        cursor.accept_any("RESTRICT", "CASCADE")
        _skip_wait(cursor)
        return DropTables(tuple(tables), only_sequences=found == "SEQUENCE")
    cursor.accept_any("ONLINE", "OFFLINE")
    cursor.expect("INDEX")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name()
    cursor.expect("ON")
    table = cursor.table()
    _skip_all(cursor)  # ALGORITHM, LOCK, WAIT
    return AlterTable(table, (DropKey(name, if_exists),))


def _rename(cursor: Cursor) -> Parsed:
    if not cursor.accept_any("TABLE", "TABLES"):
        raise cursor.unreadable("expected TABLE")
    cursor.accept("IF", "EXISTS")
    pairs: list[tuple[TableName, TableName]] = []
    while not pairs or cursor.accept(","):
        old = cursor.table()
        _skip_wait(cursor)
        cursor.expect("TO")
        pairs.append((old, cursor.table()))
    return RenameTables(tuple(pairs))


def _skip_wait(cursor: Cursor) -> None:
    """MariaDB: how long to wait for the table's lock."""
    if cursor.accept("WAIT"):
        cursor.next()
    else:
        cursor.accept("NOWAIT")


def _skip_all(cursor: Cursor) -> Irrelevant:
    while not cursor.is_end():
        cursor.next()
    return Irrelevant()
