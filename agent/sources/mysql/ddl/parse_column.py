"""A column as a statement defines it: its type's words, its default, its attributes."""

from dataclasses import replace

from agent.sources.mysql.ddl.cursor import Cursor
from agent.sources.mysql.ddl.expressions import written
from agent.sources.mysql.ddl.lexer import TokenKind
from agent.sources.mysql.ddl.syntax import ColumnSpec, DefaultKind, DefaultSpec, Literal, LiteralKind, TypeSpec

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


def column_spec(cursor: Cursor) -> ColumnSpec:
    """Name, type and attributes, up to what follows them; raises `Unreadable`."""
    name = cursor.column()
    return attributes(cursor, ColumnSpec(name, type_spec(cursor)))


def type_spec(cursor: Cursor) -> TypeSpec:
    for words in _LONG_TYPES:
        if cursor.accept(*words):
            return _type_attributes(cursor, _with_arguments(cursor, TypeSpec(" ".join(words))))
    token = cursor.peek()
    if token.kind is not TokenKind.WORD:
        raise cursor.unreadable("expected a type")
    cursor.next()
    if cursor.accept("."):  # MariaDB: mariadb_schema.DATE, oracle_schema.DATE
        return _type_attributes(cursor, _with_arguments(cursor, TypeSpec(f"{token.word}.{cursor.name().upper()}")))
    return _type_attributes(cursor, _with_arguments(cursor, TypeSpec(token.word)))


def _with_arguments(cursor: Cursor, spec: TypeSpec) -> TypeSpec:
    if not cursor.accept("("):
        return spec
    if spec.name in ("ENUM", "SET"):
        labels = [cursor.literal()]
        while cursor.accept(","):
            labels.append(cursor.literal())
        cursor.expect(")")
        return replace(spec, labels=tuple(labels))
    arguments = []
    while not cursor.accept(")"):
        token = cursor.next()
        if token.kind not in (TokenKind.NUMBER, TokenKind.WORD, TokenKind.SIGN) or token.word == "(":
            cursor.at -= 1
            raise cursor.unreadable("expected a type's length")
        if token.word != ",":
            arguments.append(token.word or token.text)
    return replace(spec, arguments=tuple(arguments))


def _type_attributes(cursor: Cursor, spec: TypeSpec) -> TypeSpec:
    while True:
        if word := cursor.accept_any("UNSIGNED", "ZEROFILL"):
            spec = replace(spec, unsigned=True, zerofill=spec.zerofill or word == "ZEROFILL")
        elif cursor.accept("CHARACTER", "SET") or cursor.accept("CHARSET") or cursor.accept("CHAR", "SET"):
            spec = replace(spec, charset=cursor.name_or_text().lower())
        elif cursor.accept("ASCII"):
            spec = replace(spec, charset="latin1")
        elif cursor.accept("UNICODE"):
            spec = replace(spec, charset="ucs2")
        elif cursor.accept("BYTE"):
            spec = replace(spec, charset="binary")
        elif cursor.accept("COMPRESSED"):
            spec = replace(spec, compressed=True)
            if cursor.accept("="):
                cursor.name_or_text()
        elif not cursor.accept_any("SIGNED", "BINARY"):  # BINARY: the charset's binary collation
            return spec


def attributes(cursor: Cursor, spec: ColumnSpec) -> ColumnSpec:
    """The column with all attributes that follow."""
    while True:
        further = _attribute(cursor, spec)
        if further is None:
            return spec
        spec = further


def _attribute(cursor: Cursor, spec: ColumnSpec) -> ColumnSpec | None:
    """The column with one attribute more; None where none follows."""
    if cursor.accept("NOT", "NULL") or cursor.accept("NULL"):
        return replace(spec, nullable=cursor.peek(-2).word != "NOT")
    if cursor.accept("DEFAULT"):
        return replace(spec, default=default_spec(cursor))
    if cursor.accept("ON", "UPDATE"):
        _now(cursor)
        return replace(spec, on_update_now=True)
    if cursor.accept("AUTO_INCREMENT"):
        return replace(spec, auto_increment=True, nullable=False)  # a NULL behind it counts
    if cursor.accept("SERIAL", "DEFAULT", "VALUE"):
        return replace(spec, auto_increment=True, nullable=False, unique=True)
    if cursor.accept("PRIMARY", "KEY") or cursor.accept("PRIMARY") or cursor.accept("KEY"):
        return replace(spec, primary=True)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("KEY", "INDEX")
        return replace(spec, unique=True)
    if visible := cursor.accept_any("INVISIBLE", "VISIBLE"):
        return replace(spec, visible=visible == "VISIBLE")
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return replace(spec, versioned=True)
    if cursor.accept("COLLATE"):
        cursor.accept("=")
        collation = "" if cursor.accept("DEFAULT") else cursor.name_or_text().lower()
        return replace(spec, type=replace(spec.type, collation=collation))
    if cursor.sees("GENERATED", "ALWAYS", "AS") or cursor.sees("AS"):
        return _generated(cursor, spec)
    return spec if _skipped_attribute(cursor) else None


def _generated(cursor: Cursor, spec: ColumnSpec) -> ColumnSpec:
    cursor.accept("GENERATED", "ALWAYS")
    cursor.expect("AS")
    if cursor.accept("ROW", "START") or cursor.accept("ROW", "END"):
        return replace(spec, generated=True, period=cursor.peek(-1).word)
    if not cursor.sees("("):
        raise cursor.unreadable("expected an expression")
    started = cursor.at
    cursor.skip_parentheses()
    return replace(
        spec,
        generated=True,
        expression=written(cursor.since(started)),
        reads=cursor.names_since(started),
    )


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


def default_spec(cursor: Cursor) -> DefaultSpec:
    """After DEFAULT; raises `Unreadable`."""
    started = cursor.at
    words = _default_spec(cursor)
    is_computed = words.kind is DefaultKind.EXPRESSION and words.literal is None
    return replace(words, reads=cursor.names_since(started)) if is_computed else words


def _default_spec(cursor: Cursor) -> DefaultSpec:
    if cursor.accept("NULL"):
        return DefaultSpec(DefaultKind.NULL)
    if _is_now(cursor, 0):
        _now(cursor)
        return DefaultSpec(DefaultKind.NOW)
    if cursor.sees("("):
        started = cursor.at
        cursor.skip_parentheses()
        return _in_parentheses(cursor, started)
    literal = _literal(cursor)
    if literal is not None:
        return DefaultSpec(DefaultKind.LITERAL, literal)
    if cursor.peek().text.startswith("@"):  # MariaDB: a variable
        cursor.next()
        if cursor.accept(":="):
            default_spec(cursor)
        return DefaultSpec(DefaultKind.EXPRESSION)
    if cursor.sees("NEXT", "VALUE", "FOR") or cursor.sees("PREVIOUS", "VALUE", "FOR"):
        cursor.at += 3
        cursor.table()
    else:  # MariaDB: a function or column without parentheses around it
        cursor.column()
        if cursor.sees("("):
            cursor.skip_parentheses()
    return DefaultSpec(DefaultKind.EXPRESSION)


def _literal(cursor: Cursor) -> Literal | None:
    if cursor.sees_literal():
        return cursor.literal()
    if word := cursor.accept_any("TRUE", "FALSE"):
        return Literal(LiteralKind.NUMBER, "1" if word == "TRUE" else "0")
    if cursor.sees_any(*_TEMPORAL_LITERALS) and cursor.peek(1).kind is TokenKind.STRING:
        cursor.next()
        return cursor.literal()
    return None


def _in_parentheses(cursor: Cursor, started: int) -> DefaultSpec:
    """What was between the parentheses, the cursor being after them."""
    ended = cursor.at
    cursor.at = started
    depth = 0
    while cursor.accept("("):
        depth += 1
    if cursor.accept("NULL") and cursor.at + depth == ended:
        found = DefaultSpec(DefaultKind.NULL_IN_PARENTHESES)
    else:
        cursor.at = started + depth
        literal = _literal(cursor)
        is_alone = literal is not None and cursor.at + depth == ended
        found = DefaultSpec(DefaultKind.EXPRESSION, literal if is_alone else None)
    cursor.at = ended
    return found
