"""Columns of foreign keys: how their values compare, and whether the lake compares them as the server does. Pure."""

from menura.v1 import changes_pb2

from agent.sources.mysql.server.collations import comparison
from agent.sources.mysql.server.foreign_keys import KeyColumn

#: of types that compare by what the lake holds
_LISTS = ("enum(", "set(")


def comparison_message(column: KeyColumn) -> changes_pb2.TextComparison:
    how = comparison(column.collation) if column.collation else None
    if how is None:
        return changes_pb2.TextComparison()
    return changes_pb2.TextComparison(
        is_text=True, ignores_case=how.ignores_case, pads=how.pads, is_binary=how.is_binary
    )


def are_alike(one: KeyColumn | None, other: KeyColumn | None) -> bool:
    """Whether the lake compares these columns' values as the server does.

    >>> are_alike(KeyColumn("int(11)", "", True), KeyColumn("int(10)", "", True))
    True
    >>> are_alike(KeyColumn("varchar(9)", "utf8mb4_bin", True), KeyColumn("char(9)", "utf8mb4_bin", True))
    False
    """
    if one is None or other is None or one.collation != other.collation:
        return False
    if one.type.startswith(_LISTS) or (not one.collation and not _is_sized_freely(one.type)):
        return one.type == other.type
    if one.collation and comparison(one.collation) is None:
        return False
    return _word(one.type) == _word(other.type)


def _is_sized_freely(type_: str) -> bool:
    """An integer's width is only for show."""
    return "int" in type_


def _word(type_: str) -> str:
    """The type without its length: int(11) unsigned is int unsigned."""
    head, _, rest = type_.partition("(")
    return head + rest.partition(")")[2]
