"""How large a number or a text of somebody else's may be, and what becomes of one that no database keeps."""

from typing import Final

#: of SQL's integers; the wire's unsigned numbers reach further
MAX_INT64: Final = 2**63 - 1
#: of numbers that are counted on from what somebody else said, of rows, transactions, chunks: as much room is above it
MAX_NUMBER: Final = 2**62
#: how far a cut may be ahead of the rows and transactions that it has, and of what one chunk may hold in bytes
MAX_STEP: Final = 2**40
MAX_CHUNK_BYTES: Final = 2**50
#: of one position, as it travels
MAX_POSITION_BYTES: Final = 256 << 10
#: the last microsecond of the year 9999
MAX_INSTANT_US: Final = 253_402_300_799_999_999
#: of a database, a table, a column, a key, a server
MAX_NAME_CHARS: Final = 256
#: an error's field, a position, a column's type with its labels
MAX_TEXT_CHARS: Final = 64 << 10
#: of a source's tables that are synced: agents take no more
MAX_SYNCED_TABLES: Final = 50_000
#: more columns than a key of any server has
MAX_KEY_COLUMNS: Final = 64


def clean_int64(number: int) -> int:
    """The nearest number that SQL keeps and that can count something: any other one is nonsense, but no failure.

    >>> clean_int64(2**64 - 1) == MAX_INT64, clean_int64(-1)
    (True, 0)
    """
    return max(0, min(number, MAX_INT64))


def clean_text(text: str, most_chars: int = MAX_TEXT_CHARS) -> str:
    """The text's beginning, without NUL, which PostgreSQL does not store.

    >>> clean_text("a\\0bc", 3)
    'a\\ufffdb'
    """
    return text[:most_chars].replace("\0", "\N{REPLACEMENT CHARACTER}")
