"""CREATE TABLE: columns, keys and options; the parts that ALTER TABLE shares."""

from dataclasses import dataclass, field, replace

from agent.sources.mysql.ddl.cursor import Cursor
from agent.sources.mysql.ddl.lexer import TokenKind, words
from agent.sources.mysql.ddl.parse_column import column_spec, skip_check, skip_references
from agent.sources.mysql.ddl.syntax import ColumnSpec, CreateTable, KeyPart, KeySpec, PeriodSpec, TableOptions

_SELECT_STARTS = ("SELECT", "WITH", "VALUES", "TABLE")
_KEY_WORDS = ("INDEX", "KEY")


@dataclass(slots=True)
class Items:
    """What stands between the parentheses of CREATE TABLE, or follows ADD."""

    columns: list[ColumnSpec] = field(default_factory=list)
    keys: list[KeySpec] = field(default_factory=list)
    periods: list[PeriodSpec] = field(default_factory=list)


def create_table(cursor: Cursor, *, or_replace: bool) -> CreateTable:
    """After CREATE TABLE; raises `Unreadable`."""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    table = cursor.table()
    made = CreateTable(table, if_not_exists, or_replace)
    if cursor.accept("LIKE") or cursor.accept("(", "LIKE"):
        made = replace(made, like=cursor.table())
        cursor.accept(")")
        return made
    items = Items()
    if cursor.sees("(") and not _is_select(cursor):
        cursor.next()
        _items(cursor, items)
    options = table_options(cursor)
    made = replace(made, columns=tuple(items.columns), keys=tuple(items.keys), periods=tuple(items.periods))
    made = replace(made, options=options)
    cursor.accept_any("IGNORE", "REPLACE")
    if cursor.accept("AS") or _is_select(cursor):
        while not cursor.is_end():
            cursor.next()
        return replace(made, has_select=True)
    return made


def _is_select(cursor: Cursor) -> bool:
    ahead = 0
    while cursor.peek(ahead).word == "(":
        ahead += 1
    return cursor.peek(ahead).word in _SELECT_STARTS


def _items(cursor: Cursor, items: Items) -> None:
    """After the opening parenthesis, to after the closing one."""
    while True:
        if not key_or_check(cursor, items):
            cursor.accept("COLUMN")  # MariaDB
            items.columns.append(column_spec(cursor))
        if cursor.accept(")"):
            return
        cursor.expect(",")


def key_or_check(cursor: Cursor, items: Items) -> bool:
    """Reads a key, check or period, if it is one."""
    if cursor.sees("PERIOD", "IF"):
        raise cursor.unreadable("whether it has the period is not known")
    if cursor.accept("PERIOD", "FOR"):
        _period(cursor, items)
        return True
    name = ""
    if cursor.accept("CONSTRAINT"):
        cursor.accept("IF", "NOT", "EXISTS")
        if not cursor.sees_any("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            name = cursor.name()
    if cursor.sees("CHECK"):
        skip_check(cursor)
    elif cursor.accept("PRIMARY", "KEY"):
        items.keys.append(_key(cursor, "PRIMARY", primary=True))
    elif cursor.accept("UNIQUE"):
        cursor.accept_any(*_KEY_WORDS)
        items.keys.append(_key(cursor, name))
    elif cursor.accept("FOREIGN", "KEY"):
        cursor.accept("IF", "NOT", "EXISTS")
        if not cursor.sees("("):
            cursor.name()
        cursor.skip_parentheses()
        cursor.expect("REFERENCES")
        skip_references(cursor)
    elif _is_plain_key(cursor):
        cursor.accept_any("FULLTEXT", "SPATIAL", "VECTOR")
        cursor.accept_any(*_KEY_WORDS)
        items.keys.append(_key(cursor, "", unique=False))
    else:
        return False
    return True


def _period(cursor: Cursor, items: Items) -> None:
    """After PERIOD FOR."""
    if cursor.accept("SYSTEM_TIME"):
        cursor.skip_parentheses()
        return
    name = cursor.name()
    cursor.expect("(")
    start = cursor.name()
    cursor.expect(",")
    items.periods.append(PeriodSpec(name, start, cursor.name()))
    cursor.expect(")")


def _is_plain_key(cursor: Cursor) -> bool:
    if cursor.sees_any("FULLTEXT", "SPATIAL", *_KEY_WORDS):
        return True
    return cursor.sees("VECTOR") and cursor.peek(1).word in _KEY_WORDS


def _key(cursor: Cursor, name: str, *, primary: bool = False, unique: bool = True) -> KeySpec:
    """After PRIMARY KEY, UNIQUE KEY or KEY."""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    uses_hash = False
    if not cursor.sees_any("(", "USING", "TYPE"):
        given = cursor.name()
        name = name if primary else given
    if cursor.accept_any("USING", "TYPE"):
        uses_hash = cursor.next().word == "HASH"
    parts = key_parts(cursor)
    while True:
        if cursor.accept_any("USING", "TYPE"):
            uses_hash = cursor.next().word == "HASH"
        elif cursor.accept("WITH", "PARSER") or cursor.accept_any(
            "KEY_BLOCK_SIZE", "COMMENT", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "CLUSTERING"
        ):
            cursor.accept("=")
            cursor.next()
        elif not cursor.accept("NOT", "IGNORED") and not cursor.accept_any("VISIBLE", "INVISIBLE", "IGNORED"):
            if cursor.peek().kind not in (TokenKind.WORD, TokenKind.NAME) or cursor.peek(1).word != "=":
                return KeySpec(primary, name, parts, unique, if_not_exists, uses_hash)
            cursor.at += 2  # an engine's own
            cursor.next()


def key_parts(cursor: Cursor) -> tuple[KeyPart, ...]:
    """(a, b(10) DESC, (c + 1))"""
    cursor.expect("(")
    parts = []
    while True:
        if cursor.sees("("):
            cursor.skip_parentheses()
            parts.append(KeyPart(""))
        else:
            name = cursor.name()
            length = _part_length(cursor)
            parts.append(KeyPart(name, length, cursor.accept("WITHOUT", "OVERLAPS")))
        cursor.accept_any("ASC", "DESC")
        if cursor.accept(")"):
            return tuple(parts)
        cursor.expect(",")


def _part_length(cursor: Cursor) -> int:
    if not cursor.accept("("):
        return 0
    digits = cursor.next().text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise cursor.unreadable("expected the length of a key's part")
    cursor.expect(")")
    return int(digits)


def database_options(cursor: Cursor) -> TableOptions:
    """CHARACTER SET, COLLATE, COMMENT, ENCRYPTION, READ ONLY."""
    options = TableOptions()
    while not cursor.is_end() and not cursor.sees(";"):
        further = charset_option(cursor, options)
        if further is not None:
            options = further
        elif (
            cursor.accept("DEFAULT", "ENCRYPTION")
            or cursor.accept_any("ENCRYPTION", "COMMENT")
            or cursor.accept("READ", "ONLY")
        ):
            cursor.accept("=")
            cursor.next()
        else:
            raise cursor.unreadable("expected a database's option")
    return options


def _accept_first(cursor: Cursor, *alternatives: tuple[str, ...]) -> bool:
    return any(cursor.accept(*alternative) for alternative in alternatives)


def charset_option(cursor: Cursor, options: TableOptions) -> TableOptions | None:
    """[DEFAULT] CHARACTER SET [=] x, [DEFAULT] COLLATE [=] y; None where it is neither."""
    started = cursor.at
    cursor.accept("DEFAULT")
    if cursor.accept("CHARACTER", "SET") or cursor.accept("CHARSET") or cursor.accept("CHAR", "SET"):
        cursor.accept("=")
        if cursor.accept("DEFAULT"):
            return replace(options, charset="", charset_is_default=True)
        return replace(options, charset=cursor.name_or_text().lower(), charset_is_default=False)
    if cursor.accept("COLLATE"):
        cursor.accept("=")
        if cursor.accept("DEFAULT"):
            return options
        return replace(options, collation=cursor.name_or_text().lower())
    cursor.at = started
    return None


def table_options(cursor: Cursor) -> TableOptions:
    """Options and partitions, up to the end or to AS SELECT."""
    options = TableOptions()
    while not cursor.is_end():
        cursor.accept(",")
        further = table_option(cursor, options)
        if further is not None:
            options = further
        elif cursor.accept("PARTITION", "BY"):
            skip_partitions(cursor)
        else:
            return options
    return options


def table_option(cursor: Cursor, options: TableOptions) -> TableOptions | None:
    """The options with one more; None where none follows."""
    further = charset_option(cursor, options)
    if further is not None:
        return further
    if cursor.accept_any("ENGINE", "TYPE"):
        cursor.accept("=")
        return replace(options, engine=cursor.name_or_text().upper())
    if cursor.accept("START", "TRANSACTION"):
        return replace(options, starts_transaction=True)
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return replace(options, is_versioned=True)
    if cursor.accept("UNION"):
        cursor.accept("=")
        cursor.skip_parentheses()
        return options
    if _accept_first(cursor, ("DATA", "DIRECTORY"), ("INDEX", "DIRECTORY"), ("STORAGE",)):
        cursor.accept("=")
        cursor.next()
        return options
    return options if _skipped_option(cursor) else None


_OPTIONS = words(
    """
    AUTO_INCREMENT AVG_ROW_LENGTH CHECKSUM COMMENT COMPRESSION CONNECTION DELAY_KEY_WRITE ENCRYPTION INSERT_METHOD
    KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PAGE_CHECKSUM PASSWORD ROW_FORMAT SECONDARY_ENGINE STATS_AUTO_RECALC
    STATS_PERSISTENT STATS_SAMPLE_PAGES TABLESPACE TABLE_CHECKSUM TRANSACTIONAL AUTOEXTEND_SIZE ENGINE_ATTRIBUTE
    SECONDARY_ENGINE_ATTRIBUTE SEQUENCE IETF_QUOTES ENCRYPTED ENCRYPTION_KEY_ID PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL
    """
)


def _skipped_option(cursor: Cursor) -> bool:
    """name [=] value; any name where the = is there."""
    if cursor.peek().kind not in (TokenKind.WORD, TokenKind.NAME):
        return False
    has_sign = cursor.peek(1).word == "="
    if not has_sign and cursor.peek().word not in _OPTIONS:
        return False
    cursor.next()
    cursor.accept("=")
    cursor.accept_any("-", "+")
    cursor.next()
    return True


def skip_partitions(cursor: Cursor) -> None:
    """After PARTITION BY: up to where no part of it follows."""
    cursor.accept("LINEAR")
    if cursor.accept("SYSTEM_TIME"):
        _skip_system_time(cursor)
    else:
        cursor.name()
        if cursor.accept("ALGORITHM"):
            cursor.expect("=")
            cursor.next()
        cursor.accept("COLUMNS")
        cursor.skip_parentheses()
    if cursor.accept("PARTITIONS"):
        cursor.next()
    if cursor.accept("SUBPARTITION", "BY"):
        cursor.accept("LINEAR")
        cursor.name()
        if cursor.accept("ALGORITHM"):
            cursor.expect("=")
            cursor.next()
        cursor.skip_parentheses()
        if cursor.accept("SUBPARTITIONS"):
            cursor.next()
    if cursor.sees("("):
        cursor.skip_parentheses()


def _skip_system_time(cursor: Cursor) -> None:
    """MariaDB: INTERVAL 1 DAY STARTS '2020-01-01' AUTO, LIMIT 10"""
    while not cursor.is_end() and not cursor.sees_any("(", "PARTITIONS", "SUBPARTITION", ",", "AS", "SELECT", ";"):
        if cursor.accept("TIMESTAMP") or cursor.accept("NOW"):
            continue
        cursor.next()
