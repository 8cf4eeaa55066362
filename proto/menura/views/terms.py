"""Values of a view's expressions: their text for the engine, and their types.

A type is an Arrow C format string, as in the lake, where all integers have 64 bits. What Spark makes of an integer
beside a decimal depends on whether it is an INT, a BIGINT or written out, so a term knows that.
"""

from dataclasses import dataclass

from menura.types import decimal_digits

#: Of what compiled text means, beside the text itself. It goes up with a release that computes anything else than the
#: former one did, so that views are computed anew.
MEANING = 4

INTEGER, DOUBLE, FLOAT, TEXT, BINARY, DATE, INSTANT, LOCAL_TIME, BOOLEAN = (
    "l", "g", "f", "u", "z", "tdD", "tsu:UTC", "tsu:", "b",
)  # fmt: skip
#: of NULL alone
NOTHING = "n"
#: of a column whose type is not known where the plan is made: all that depends on it passes, and is unknown too
UNKNOWN = ""
WORDS = {
    INTEGER: "BIGINT",
    DOUBLE: "DOUBLE",
    FLOAT: "FLOAT",
    TEXT: "VARCHAR",
    BINARY: "BLOB",
    DATE: "DATE",
    INSTANT: "TIMESTAMPTZ",
    LOCAL_TIME: "TIMESTAMP",
    BOOLEAN: "BOOLEAN",
}
#: of a decimal that has all values of an integer type
INT_DIGITS, BIGINT_DIGITS = 10, 20


@dataclass(frozen=True, slots=True)
class Term:
    """A value: its text for the engine, its type as an Arrow C format string."""

    sql: str
    type: str
    #: of an integer: whether it is what Spark calls INT or BIGINT
    digits: int = BIGINT_DIGITS
    #: of an integer that is written out: its own digits; 0: it is computed
    literal: int = 0

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a number that is no float, where values get one type."""
        return (self.digits, 0) if self.type == INTEGER else decimal_digits(self.type)

    @property
    def operand(self) -> tuple[int, int] | None:
        """The same where it is computed with or compared."""
        return (self.literal, 0) if self.literal else self.decimal


def type_word(type_: str) -> str:
    """The engine's."""
    if type_ == UNKNOWN:
        return "UNKNOWN"
    digits = decimal_digits(type_)
    return WORDS[type_] if digits is None else f"DECIMAL({digits[0]},{digits[1]})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def said(type_: str) -> str:
    """The type as Spark calls it."""
    if type_ == NOTHING:
        return "NULL"
    return {"VARCHAR": "STRING", "BLOB": "BINARY", "TIMESTAMPTZ": "TIMESTAMP", "TIMESTAMP": "TIMESTAMP_NTZ"}.get(
        type_word(type_), type_word(type_)
    )
