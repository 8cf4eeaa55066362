"""Values from the server's text: what rows hold that the log has no value of.

Text in the form of `menura.v1.ColumnAfter` and `menura.change_batch.METADATA_DEFAULT` in, Arrow scalars out. Pure.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

_DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_PADDED = re.compile(r"binary\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Fill:
    """One value for many rows."""

    value: pa.Scalar
    #: the server's text, where the value is one that the column's type can't hold
    unrepresentable: str | None = None
    is_unknown: bool = False


def read_fill(text: str, type_: pa.DataType, source_type: str) -> Fill:
    """Raises ArrowInvalid or ValueError."""
    return _fill_date(text, type_) if pa.types.is_temporal(type_) else Fill(read_value(text, type_, source_type))


def _fill_date(text: str, type_: pa.DataType) -> Fill:
    """A date, or what looks like one and is in no calendar."""
    if _DATE.fullmatch(text) is None:
        raise ValueError("no date")
    try:
        if not text.startswith("0000"):
            return Fill(read_value(text, type_, ""))
    except pa.ArrowInvalid:
        pass  # a zero part, a 30th of February: kept as the server's text
    return Fill(pa.scalar(None, type_), unrepresentable=text)


def read_value(text: str, type_: pa.DataType, source_type: str) -> pa.Scalar:
    """A value from the server's text: binary in hex, BIT in decimal digits, an instant in UTC.

    Raises ArrowInvalid or ValueError. Whole numbers of microseconds stand for a TIME:

    >>> read_value("-00:00:01.5", pa.int64(), "time(1)")
    <pyarrow.Int64Scalar: -1500000>
    """
    if re.match(r"time\b", source_type):
        return pa.scalar(_time_us(text), type_)
    if pa.types.is_binary(type_):
        padded = _PADDED.match(source_type)
        return pa.scalar(bytes.fromhex(text).ljust(int(padded[1]) if padded else 0, b"\0"), type_)
    if pa.types.is_timestamp(type_):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(type_)
    return pa.scalar(text).cast(type_)


def _time_us(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -value if sign else value
