"""Values of a key's columns that its source and its lake order alike: what ranges of a key are bounded by.

A verification compares ranges of a key, and a repair reads some again (`menura.landed_digest`). Both need an order that
the source's index, the agent, the gateway and the lake share. A column has it by its *kind*; ranges are of the key's
leading columns that have one, as many as there are. What stands in digests, orders and the cut log is:

==============  ==========================================================  =======================================
kind            columns                                                     value
==============  ==========================================================  =======================================
integer         integers, YEAR, BIT                                         the number
date            dates                                                       days since 1970
datetime        timestamps without a time zone                              microseconds since 1970
instant         timestamps of an instant                                    microseconds since 1970, UTC
decimal(S)      decimals of up to 38 digits, S of them behind the point     the unscaled number
binary          bytes, compared one by one, a shorter one before            hexadecimal digits, lower case
text            texts whose collation compares UTF-8 as binary does; UUIDs  the same of its UTF-8
==============  ==========================================================  =======================================

So values of one kind compare as Python compares int or str. A kind names what a number means: a range of days is no
range of integers, should a key's type be altered between a verdict and its repair. Not of any kind are floats (which
zero is the lesser, and where is NaN), texts of every other collation, ENUM, SET, times of day, addresses, and UUIDs
that a server orders by other parts first.

A bound's date or time is of the years 1 to 9999, since no other one can be written in every SQL. A row beyond these is
inside a range as any other row is; but no range ends with it.
"""

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal

INTEGER, DATE, DATETIME, INSTANT, BINARY, TEXT = "integer", "date", "datetime", "instant", "binary", "text"
_FORMATS = {
    **dict.fromkeys(("c", "C", "s", "S", "i", "I", "l", "L"), INTEGER),
    "tdD": DATE,
    "tsu:": DATETIME,
    "tsu:UTC": INSTANT,
    "z": BINARY,
}
_DECIMAL = re.compile(r"decimal\((\d|[12]\d|3[0-8])\)")
_NUMBER = re.compile(r"-?[0-9]{1,39}")
_HEX = re.compile(r"([0-9a-f]{2})*")

#: of a column of a chunk's bound; of a leaf's or a range's bound
MOST_BYTES, MOST_END_BYTES = 3072, 512
_DAY, _MOMENT = date(1970, 1, 1), datetime(1970, 1, 1)  # noqa: DTZ001  (a database's own)
_MICROSECOND = timedelta(microseconds=1)
_DAYS = ((date.min - _DAY).days, (date.max - _DAY).days)
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_MOST_DIGITS = 10**38 - 1
_ENDS = {
    INTEGER: (-(1 << 63), (1 << 64) - 1),
    DATE: _DAYS,
    DATETIME: _MICROSECONDS,
    INSTANT: _MICROSECONDS,
}
_DIGITS = Context(prec=76)

KeyValue = int | str
#: of leading columns of a key; empty: no bound
Key = tuple[KeyValue, ...]


def kind_of(format_: str) -> str:
    """Of a landed column by its Arrow C format string; '' of one that has no order, or where more has to be known.

    >>> kind_of("L"), kind_of("tsu:UTC"), kind_of("d:12,2"), kind_of("u"), kind_of("g")
    ('integer', 'instant', 'decimal(2)', '', '')
    """
    return f"decimal({format_.split(',')[1]})" if format_.startswith("d:") else _FORMATS.get(format_, "")


def is_kind(text: str) -> bool:
    return text in (BINARY, TEXT, *_ENDS) or _DECIMAL.fullmatch(text) is not None


def scale_of(kind: str) -> int | None:
    """Digits behind the point; None: it is no decimal.

    >>> scale_of("decimal(2)"), scale_of("integer")
    (2, None)
    """
    found = _DECIMAL.fullmatch(kind)
    return int(found[1]) if found is not None else None


def is_value(kind: str, value: object, most_bytes: int = MOST_BYTES) -> bool:
    """Whether a bound may have it.

    >>> is_value("date", -719162), is_value("date", -719163), is_value("binary", "0aff"), is_value("binary", "0AFF")
    (True, False, True, False)
    """
    if kind in (BINARY, TEXT):
        if not isinstance(value, str) or len(value) > 2 * most_bytes or _HEX.fullmatch(value) is None:
            return False
        return kind == BINARY or _is_text(bytes.fromhex(value))
    least, greatest = _ENDS.get(kind, (-_MOST_DIGITS, _MOST_DIGITS))
    return type(value) is int and least <= value <= greatest


def is_key(kinds: Sequence[str], key: Sequence[object], most_bytes: int = MOST_BYTES) -> bool:
    """Whether it is a bound of these kinds, or none."""
    pairs = zip(kinds, key, strict=False)
    return not key or (len(key) == len(kinds) and all(is_value(kind, value, most_bytes) for kind, value in pairs))


def written(key: Sequence[KeyValue]) -> list[str]:
    """As a message has it."""
    return [str(value) for value in key]


def read(kinds: Sequence[str], texts: Sequence[str]) -> Key:
    """The same back. ValueError: it is no such key.

    >>> read(["integer", "binary"], ["-7", "00ff"]), read(["integer"], [])
    ((-7, '00ff'), ())
    """
    found = tuple(
        int(text) if kind not in (BINARY, TEXT) and _NUMBER.fullmatch(text) else text
        for kind, text in zip(kinds, texts, strict=False)
    )
    if len(texts) not in (0, len(kinds)) or not is_key(kinds, found):
        raise ValueError(f"no key of the kinds {', '.join(kinds)}")
    return found


def travelling(kinds: Sequence[str], above: Key, up_to: Key) -> tuple[Key, Key]:
    """The range around this one whose bounds are short enough to be ordered.

    >>> travelling(["integer"], (5,), (6,))
    ((5,), (6,))
    >>> above, up_to = travelling(["binary", "integer"], ("ab" * 600, 7), ("ab" * 600, 9))
    >>> above == ("ab" * 512, 7), up_to
    (True, ())
    """
    below = [
        value if not isinstance(value, str) or is_value(kind, value, MOST_END_BYTES) else _beginning(kind, value)
        for kind, value in zip(kinds, above, strict=False)
    ]
    return tuple(below), up_to if is_key(kinds, up_to, MOST_END_BYTES) else ()


def _beginning(kind: str, value: str) -> str:
    """Which is below it."""
    cut = bytes.fromhex(value)[:MOST_END_BYTES]
    return (cut.decode(errors="ignore").encode() if kind == TEXT else cut).hex()


def literal(kind: str, value: KeyValue) -> str:
    """Its text as `menura.types` has it, with as many digits as the kind has.

    >>> literal("date", 0), literal("datetime", -1), literal("decimal(2)", -5), literal("text", "c3a9")
    ('1970-01-01', '1969-12-31 23:59:59.999999', '-0.05', 'é')
    """
    if isinstance(value, str):
        return bytes.fromhex(value).decode() if kind == TEXT else value
    if kind == DATE:
        return (_DAY + timedelta(days=value)).isoformat()
    if kind in (DATETIME, INSTANT):
        return (_MOMENT + timedelta(microseconds=value)).isoformat(" ", "microseconds")
    scale = scale_of(kind)
    return f"{Decimal(value).scaleb(-scale, _DIGITS):f}" if scale else str(value)


def value_of(kind: str, text: str) -> KeyValue:
    """The value of a literal, which may have fewer digits. ValueError: there is none, or no bound has it.

    >>> value_of("datetime", "1970-01-01 00:00:01"), value_of("decimal(2)", "007.5"), value_of("text", "é")
    (1000000, 750, 'c3a9')
    """
    value: KeyValue
    if kind == TEXT:
        value = text.encode().hex()
    elif kind == BINARY:
        value = text
    elif kind == DATE:
        value = (date.fromisoformat(text) - _DAY).days
    elif kind in (DATETIME, INSTANT):
        value = (datetime.fromisoformat(text).replace(tzinfo=None) - _MOMENT) // _MICROSECOND
    elif (scale := scale_of(kind)) is not None and _is_number(text):
        value = int(Decimal(text).scaleb(scale, _DIGITS))
    else:
        value = int(text)
    if not is_value(kind, value):
        raise ValueError(f"no bound of the kind {kind}")
    return value


def words(kinds: Sequence[str], key: Sequence[KeyValue], between: str = "/") -> str:
    """For a person.

    >>> words(["date", "integer"], (0, 7)), words(["binary"], ("0aff",)), words((), (1, 2))
    ('1970-01-01/7', '0x0aff', '1/2')
    """
    kinds = kinds if key and kinds else [INTEGER] * len(key)
    texts = [literal(kind, value) for kind, value in zip(kinds, key, strict=True)]
    return between.join(f"0x{text}" if kind == BINARY else text for kind, text in zip(kinds, texts, strict=True))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,38}(\.[0-9]{1,38})?", text) is not None


def _is_text(utf8: bytes) -> bool:
    try:
        utf8.decode()
    except UnicodeDecodeError:
        return False
    return True
