"""What rows hold that the log has no value of: literals of `menura.types` in, values out. Pure.

Up to format 5 a landing has them in the words of MySQL and MariaDB, beside the column's type there: `former_value`.
"""

import re
from dataclasses import dataclass

import pyarrow as pa
from menura.change_batch import LITERAL_DEFAULT, NULL_DEFAULT, TEXT_DEFAULT, UNREPRESENTABLE_DEFAULT

_DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_PADDED = re.compile(r"binary\((\d+)\)")


@dataclass(frozen=True, slots=True)
class DefaultValue:
    """One value for many rows."""

    value: pa.Scalar
    #: what the column's type can't hold, in the source's own text
    unrepresentable: str | None = None
    is_unknown: bool = False


def nothing(type_: pa.DataType, *, is_unknown: bool = False) -> DefaultValue:
    """NULL, or no one knows what."""
    return DefaultValue(pa.scalar(None, type_), is_unknown=is_unknown)


def unrepresentable(text: str, type_: pa.DataType) -> DefaultValue:
    return DefaultValue(pa.scalar(None, type_), unrepresentable=text)


def insert_default(told: str, type_: pa.DataType, source_type: str) -> DefaultValue:
    """From a column's `METADATA_DEFAULT`; raises ArrowInvalid or ValueError."""
    if told == NULL_DEFAULT:
        return nothing(type_)
    form, text = told[:1], told[1:]
    if form == LITERAL_DEFAULT:
        return read_literal(text, type_)
    if form == UNREPRESENTABLE_DEFAULT:
        return unrepresentable(text, type_)
    if form == TEXT_DEFAULT:
        return former_value(text, type_, source_type)
    raise ValueError("no default")


def read_literal(text: str, type_: pa.DataType) -> DefaultValue:
    """Raises ArrowInvalid or ValueError.

    >>> read_literal("-1500000", pa.int64()).value, read_literal("00ff", pa.binary()).value
    (<pyarrow.Int64Scalar: -1500000>, <pyarrow.BinaryScalar: b'\\x00\\xff'>)
    """
    if pa.types.is_binary(type_):
        return DefaultValue(pa.scalar(bytes.fromhex(text), type_))
    if pa.types.is_timestamp(type_):
        return DefaultValue(pa.scalar(text).cast(pa.timestamp("us")).cast(type_))
    return DefaultValue(pa.scalar(text).cast(type_))


def former_value(text: str, type_: pa.DataType, source_type: str) -> DefaultValue:
    """As MySQL and MariaDB print it: binary in hex, BIT in decimal digits, an instant in UTC.

    Raises ArrowInvalid or ValueError. Whole numbers of microseconds stand for a TIME:

    >>> former_value("-00:00:01.5", pa.int64(), "time(1)").value
    <pyarrow.Int64Scalar: -1500000>
    """
    if re.match(r"time\b", source_type):
        return DefaultValue(pa.scalar(_time_us(text), type_))
    if pa.types.is_binary(type_):
        padded = _PADDED.match(source_type)
        return DefaultValue(pa.scalar(bytes.fromhex(text).ljust(int(padded[1]) if padded else 0, b"\0"), type_))
    return _former_date(text, type_) if pa.types.is_temporal(type_) else read_literal(text, type_)


def _former_date(text: str, type_: pa.DataType) -> DefaultValue:
    """A date, or what looks like one and is in no calendar."""
    if _DATE.fullmatch(text) is None:
        raise ValueError("no date")
    try:
        if not text.startswith("0000"):
            return read_literal(text, type_)
    except pa.ArrowInvalid:
        pass  # a zero part, a 30th of February: kept as the server's text
    return unrepresentable(text, type_)


def _time_us(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -value if sign else value
