"""A column's words as its definition, and what earlier rows hold in it when it is added.

Pure; raises `Unreadable`.
"""

from dataclasses import dataclass, replace

from agent.sources.mysql.ddl.expressions import digest_of_statement
from agent.sources.mysql.ddl.literals import implicit_text, literal_text
from agent.sources.mysql.ddl.model import (
    NUMBER_KINDS,
    AddedColumn,
    ColumnDefinition,
    Default,
    EarlierRows,
    Server,
    Statement,
)
from agent.sources.mysql.ddl.syntax import ColumnSpec, DefaultKind, DefaultSpec, LiteralKind
from agent.sources.mysql.ddl.types import TypeContext, column_type, decimals, shape
from agent.sources.mysql.types import Kind

#: MariaDB
_EMPTY_STRING_IS_NULL = 1 << 32
#: MySQL
_WITHOUT_LITERALS = (Kind.TEXT, Kind.BLOB, Kind.GEOMETRY, Kind.JSON)


@dataclass(frozen=True, slots=True)
class Context:
    """What a definition's words depend on besides themselves."""

    statement: Statement
    server: Server
    #: of the session's database; '' where it is not known
    charset_of_session: str
    #: of the table; '' where it is not known
    charset: str

    @property
    def default_charset(self) -> str:
        """What CONVERT TO CHARACTER SET DEFAULT means: to MySQL it is the session's database that counts."""
        return self.charset if self.server.mariadb else self.charset_of_session


def define(spec: ColumnSpec, context: Context) -> ColumnDefinition:
    """The column as it is afterwards, keys of the table left out."""
    types = TypeContext(context.server, context.statement.sql_mode, context.charset)
    type_, length = column_type(spec.type, types)
    is_serial = spec.type.name == "SERIAL"
    auto_increment = spec.auto_increment or is_serial
    has_implicit_defaults = type_.kind is Kind.TIMESTAMP and not context.statement.explicit_defaults_for_timestamp
    nullable = spec.nullable if spec.nullable is not None else not (has_implicit_defaults or is_serial)
    if spec.primary or spec.period:
        nullable = False
    column = ColumnDefinition(
        spec.name,
        type_,
        nullable=nullable,
        generated=spec.generated,
        row_end=spec.period == "END",
        visible=spec.visible,
        auto_increment=auto_increment,
        length=length,
        decimals=decimals(spec.type, type_),
        shape=shape(spec.type, type_),
        zerofill=spec.type.zerofill if type_.kind in NUMBER_KINDS else None,
        expression=digest_of_statement(spec.expression, context.statement),
        reads=spec.reads if spec.generated else None,
    )
    if spec.generated or auto_increment:
        return replace(column, default=Default.NONE)
    if spec.default is None and has_implicit_defaults and not nullable:
        return replace(column, default=Default.LITERAL, default_text=implicit_text(type_) or "")
    if spec.on_update_now and spec.default is None and not nullable and context.server.mariadb:
        return replace(column, default=Default.LITERAL, default_text=implicit_text(type_) or "")
    if spec.type.compressed and not nullable and spec.default is None:
        return replace(column, default=Default.LITERAL)  # an empty one
    return with_default(column, spec.default, context)


def with_first_timestamp(
    columns: list[ColumnDefinition], defined: list[ColumnSpec], context: Context
) -> list[ColumnDefinition]:
    """Without explicit_defaults_for_timestamp the first TIMESTAMP is CURRENT_TIMESTAMP where nothing else is said."""
    if context.statement.explicit_defaults_for_timestamp:
        return columns
    first = next((column for column in columns if column.type.kind is Kind.TIMESTAMP), None)
    words = next((words for words in defined if first is not None and words.name == first.name), None)
    if first is None or words is None or first.nullable or first.generated:
        return columns
    if words.default is not None or words.on_update_now:
        return columns
    promoted = replace(first, default=Default.EXPRESSION, default_text="", reads=())
    return [promoted if column is first else column for column in columns]


def with_default(column: ColumnDefinition, default: DefaultSpec | None, context: Context) -> ColumnDefinition:
    """The column with that default; None: without one."""
    if default is None or default.kind is DefaultKind.NULL or _is_no_default(default, column, context):
        found = Default.NULL if column.nullable else Default.NONE
        return replace(column, default=found, default_text="", reads=None)
    is_literal = default.kind is DefaultKind.LITERAL
    if default.literal is None or not (is_literal or context.server.mariadb):
        return replace(column, default=Default.EXPRESSION, default_text="", reads=default.reads)
    text = literal_text(default.literal, column, context.statement, context.server)
    if text is None:
        return replace(column, default=Default.EXPRESSION, default_text="", reads=())
    if column.type.kind is Kind.VARCHAR:
        text = text[: column.length]  # spaces
    return replace(column, default=Default.LITERAL, default_text=text, reads=None)


def _is_no_default(default: DefaultSpec, column: ColumnDefinition, context: Context) -> bool:
    """MariaDB's (NULL); an empty string that it takes for NULL, or that MySQL leaves out of a BLOB if not strict."""
    literal = default.literal
    if default.kind is DefaultKind.NULL_IN_PARENTHESES:
        return context.server.mariadb
    if literal is None or literal.kind is not LiteralKind.STRING or literal.text:
        return False
    if context.server.mariadb:
        return bool(context.statement.sql_mode & _EMPTY_STRING_IS_NULL)
    return default.kind is DefaultKind.LITERAL and column.type.kind in _WITHOUT_LITERALS


def added(spec: ColumnSpec, column: ColumnDefinition, context: Context) -> AddedColumn:
    """What rows from before hold in a column that a statement adds."""
    if column.generated or column.auto_increment:
        return AddedColumn(column.name, EarlierRows.UNKNOWN)
    if column.default is Default.NULL:
        return AddedColumn(column.name, EarlierRows.NULL)
    text: str | None = None
    if column.default is Default.LITERAL:
        text = column.default_text
    elif column.default is Default.NONE:
        text = implicit_text(column.type)
    elif spec.default is not None and spec.default.literal is not None and column.type.kind is not Kind.JSON:
        text = literal_text(spec.default.literal, column, context.statement, context.server)
    if text is None:
        return AddedColumn(column.name, EarlierRows.UNKNOWN)
    return AddedColumn(column.name, EarlierRows.TEXT, text)
