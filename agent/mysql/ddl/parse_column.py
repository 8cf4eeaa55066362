"""A column as a statement defines it: its type's words, its default, its attributes."""

from dataclasses import replace

from agent.mysql.ddl.cursor import Cursor
from agent.mysql.ddl.lexer import TokenKind
from agent.mysql.ddl.syntax import ColumnWords, DefaultKind, DefaultWords, Literal, LiteralKind, TypeWords

#: types of more than one word, longest first
_LONG_TYPES = (
    ("NATIONAL", "CHARACTER", "VARYING"),
    ("NATIONAL", "CHAR", "VARYING"),
    ("NCHAR", "VARYING"),
    ("NCHAR", "VARCHAR"),
    ("NCHAR", "VARCHARACTER"),
    ("NATIONAL", "VARCHARACTER"),
    ("NATIONAL", "VARCHAR"),
    ("NATIONAL", "CHARACTER"),
    ("NATIONAL", "CHAR"),
    ("CHARACTER", "VARYING"),
    ("CHAR", "VARYING"),
    ("LONG", "CHARACTER", "VARYING"),
    ("LONG", "CHAR", "VARYING"),
    ("LONG", "VARCHARACTER"),
    ("LONG", "VARCHAR"),
    ("LONG", "VARBINARY"),
    ("DOUBLE", "PRECISION"),
)
_NOW = ("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP")
_TEMPORAL_LITERALS = ("DATE", "TIME", "TIMESTAMP")
_ONE_WORD_ATTRIBUTES = ("SIGNED", "VIRTUAL", "STORED", "PERSISTENT", "ENFORCED", "RESTRICT", "CASCADE")


def column_words(cursor: Cursor) -> ColumnWords:
    """Name, type and attributes, up to what follows them; raises `Unreadable`."""
    name = cursor.column()
    return attributes(cursor, ColumnWords(name, type_words(cursor)))


def type_words(cursor: Cursor) -> TypeWords:
    for words in _LONG_TYPES:
        if cursor.accept(*words):
            return _type_attributes(cursor, _with_arguments(cursor, TypeWords(" ".join(words))))
    token = cursor.peek()
    if token.kind is not TokenKind.WORD:
        raise cursor.unreadable("expected a type")
    cursor.next()
    if cursor.accept("."):  # MariaDB: mariadb_schema.DATE, oracle_schema.DATE
        return _type_attributes(cursor, _with_arguments(cursor, TypeWords(f"{token.word}.{cursor.name().upper()}")))
    return _type_attributes(cursor, _with_arguments(cursor, TypeWords(token.word)))


def _with_arguments(cursor: Cursor, words: TypeWords) -> TypeWords:
    if not cursor.accept("("):
        return words
    if words.name in ("ENUM", "SET"):
        labels = [cursor.literal()]
        while cursor.accept(","):
            labels.append(cursor.literal())
        cursor.expect(")")
        return replace(words, labels=tuple(labels))
    arguments = []
    while not cursor.accept(")"):
        token = cursor.next()
        if token.kind not in (TokenKind.NUMBER, TokenKind.WORD, TokenKind.SIGN) or token.word == "(":
            cursor.at -= 1
            raise cursor.unreadable("expected a type's length")
        if token.word != ",":
            arguments.append(token.word or token.text)
    return replace(words, arguments=tuple(arguments))


def _type_attributes(cursor: Cursor, words: TypeWords) -> TypeWords:
    while True:
        if cursor.accept("UNSIGNED") or cursor.accept("ZEROFILL"):
            words = replace(words, unsigned=True)
        elif cursor.accept("CHARACTER", "SET") or cursor.accept("CHARSET") or cursor.accept("CHAR", "SET"):
            words = replace(words, charset=cursor.name_or_text().lower())
        elif cursor.accept("ASCII"):
            words = replace(words, charset="latin1")
        elif cursor.accept("UNICODE"):
            words = replace(words, charset="ucs2")
        elif cursor.accept("BYTE"):
            words = replace(words, charset="binary")
        elif cursor.accept("COMPRESSED"):
            words = replace(words, compressed=True)
            if cursor.accept("="):
                cursor.name_or_text()
        elif not cursor.accept_any("SIGNED", "BINARY"):  # BINARY: the charset's binary collation
            return words


def attributes(cursor: Cursor, words: ColumnWords) -> ColumnWords:
    """The column with all attributes that follow."""
    while True:
        further = _attribute(cursor, words)
        if further is None:
            return words
        words = further


def _attribute(cursor: Cursor, words: ColumnWords) -> ColumnWords | None:
    """The column with one attribute more; None where none follows."""
    if cursor.accept("NOT", "NULL") or cursor.accept("NULL"):
        return replace(words, nullable=cursor.peek(-2).word != "NOT")
    if cursor.accept("DEFAULT"):
        return replace(words, default=default_words(cursor))
    if cursor.accept("ON", "UPDATE"):
        _now(cursor)
        return replace(words, on_update_now=True)
    if cursor.accept("AUTO_INCREMENT"):
        return replace(words, auto_increment=True, nullable=False)  # a NULL behind it counts
    if cursor.accept("SERIAL", "DEFAULT", "VALUE"):
        return replace(words, auto_increment=True, nullable=False, unique=True)
    if cursor.accept("PRIMARY", "KEY") or cursor.accept("PRIMARY") or cursor.accept("KEY"):
        return replace(words, primary=True)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("KEY", "INDEX")
        return replace(words, unique=True)
    if visible := cursor.accept_any("INVISIBLE", "VISIBLE"):
        return replace(words, visible=visible == "VISIBLE")
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return replace(words, versioned=True)
    if cursor.accept("COLLATE"):
        cursor.accept("=")
        collation = "" if cursor.accept("DEFAULT") else cursor.name_or_text().lower()
        return replace(words, type=replace(words.type, collation=collation))
    if cursor.sees("GENERATED", "ALWAYS", "AS") or cursor.sees("AS"):
        return _generated(cursor, words)
    return words if _skipped_attribute(cursor) else None


def _generated(cursor: Cursor, words: ColumnWords) -> ColumnWords:
    cursor.accept("GENERATED", "ALWAYS")
    cursor.expect("AS")
    if cursor.accept("ROW", "START") or cursor.accept("ROW", "END"):
        return replace(words, generated=True, period=cursor.peek(-1).word)
    if not cursor.sees("("):
        raise cursor.unreadable("expected an expression")
    cursor.skip_parentheses()
    return replace(words, generated=True)


def _skipped_attribute(cursor: Cursor) -> bool:
    """Whether an attribute followed that changes nothing here."""
    if cursor.accept_any("COMMENT", "COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"):
        cursor.accept("=")
        cursor.next()
        return True
    if cursor.accept_any("SRID", "REF_SYSTEM_ID"):
        cursor.accept("=")
        cursor.next()
        return True
    if cursor.accept("MASKING", "POLICY"):
        cursor.name()
        return True
    if cursor.accept("NOT", "SECONDARY") or cursor.accept("NOT", "ENFORCED"):
        return True
    if cursor.accept("WITHOUT", "SYSTEM", "VERSIONING"):
        return True
    if cursor.sees_any("CONSTRAINT", "CHECK"):
        skip_check(cursor)
        return True
    if cursor.accept("REFERENCES"):
        skip_references(cursor)
        return True
    if cursor.accept_any(*_ONE_WORD_ATTRIBUTES):
        return True
    if cursor.peek().kind in (TokenKind.WORD, TokenKind.NAME) and cursor.peek(1).word == "=":  # MariaDB: of an engine
        cursor.name()
        cursor.expect("=")
        cursor.next()
        return True
    return False


def skip_check(cursor: Cursor) -> None:
    """[CONSTRAINT [name]] CHECK (...)"""
    if cursor.accept("CONSTRAINT") and not cursor.sees("CHECK"):
        cursor.name()
    cursor.expect("CHECK")
    cursor.skip_parentheses()
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")


def skip_references(cursor: Cursor) -> None:
    """After REFERENCES."""
    cursor.table()
    if cursor.sees("("):
        cursor.skip_parentheses()
    while True:
        if cursor.accept("MATCH"):
            cursor.next()
        elif cursor.sees("ON", "DELETE") or (cursor.sees("ON", "UPDATE") and not _is_now(cursor, 2)):
            cursor.at += 2
            if cursor.accept_any("SET", "NO"):
                cursor.next()
            elif not cursor.accept_any("RESTRICT", "CASCADE"):
                raise cursor.unreadable("expected a foreign key's action")
        else:
            return


def _is_now(cursor: Cursor, ahead: int) -> bool:
    return cursor.peek(ahead).word in _NOW


def _now(cursor: Cursor) -> None:
    if not cursor.accept_any(*_NOW):
        raise cursor.unreadable("expected CURRENT_TIMESTAMP")
    if cursor.sees("("):
        cursor.skip_parentheses()


def default_words(cursor: Cursor) -> DefaultWords:
    """After DEFAULT; raises `Unreadable`."""
    if cursor.accept("NULL"):
        return DefaultWords(DefaultKind.NULL)
    if _is_now(cursor, 0):
        _now(cursor)
        return DefaultWords(DefaultKind.NOW)
    if cursor.sees("("):
        started = cursor.at
        cursor.skip_parentheses()
        return _in_parentheses(cursor, started)
    literal = _literal(cursor)
    if literal is not None:
        return DefaultWords(DefaultKind.LITERAL, literal)
    if cursor.peek().text.startswith("@"):  # MariaDB: a variable
        cursor.next()
        if cursor.accept(":="):
            default_words(cursor)
        return DefaultWords(DefaultKind.EXPRESSION)
    if cursor.sees("NEXT", "VALUE", "FOR") or cursor.sees("PREVIOUS", "VALUE", "FOR"):
        cursor.at += 3
        cursor.table()
    else:  # MariaDB: a function or column without parentheses around it
        cursor.column()
        if cursor.sees("("):
            cursor.skip_parentheses()
    return DefaultWords(DefaultKind.EXPRESSION)


def _literal(cursor: Cursor) -> Literal | None:
    if cursor.sees_literal():
        return cursor.literal()
    if word := cursor.accept_any("TRUE", "FALSE"):
        return Literal(LiteralKind.NUMBER, "1" if word == "TRUE" else "0")
    if cursor.sees_any(*_TEMPORAL_LITERALS) and cursor.peek(1).kind is TokenKind.STRING:
        cursor.next()
        return cursor.literal()
    return None


def _in_parentheses(cursor: Cursor, started: int) -> DefaultWords:
    """What was between the parentheses, the cursor being after them."""
    ended = cursor.at
    cursor.at = started
    depth = 0
    while cursor.accept("("):
        depth += 1
    if cursor.accept("NULL") and cursor.at + depth == ended:
        found = DefaultWords(DefaultKind.NULL_IN_PARENTHESES)
    else:
        cursor.at = started + depth
        literal = _literal(cursor)
        is_alone = literal is not None and cursor.at + depth == ended
        found = DefaultWords(DefaultKind.EXPRESSION, literal if is_alone else None)
    cursor.at = ended
    return found
