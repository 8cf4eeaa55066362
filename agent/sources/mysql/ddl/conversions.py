"""Which conversions of a column keep every value, as the lake represents it. Everything else may change earlier rows.

Pure. Two definitions of a column come in, and what decides how the server converts between them. Out goes "" where each
value that the earlier type can hold is the same value in the later one, else why not, in a DBA's words. A server
rewrites the rows of an ALTER TABLE and logs none of them: what is not certainly lossless has to be read again.

`LOSSLESS` is the table of what is known. tests/agent/ddl/test_conversions.py shows it on real servers, with the values
at the edges of each type. What holds for all of it:

* *The lake's column* takes both types by a cast (`menura.types.wider_format`), or the conversion is not lossless: an
  INT never becomes a DOUBLE there, nor a DATE a DATETIME.
* *Range, sign, length.* A session with a strict sql_mode refuses to convert what does not fit. Any other stores the
  nearest value, or a part of it. So what does not fit is lost, but not in a strict session.
* *Rounding* is never refused: digits after the point, fractions of a second (MySQL rounds them, MariaDB truncates, and
  TIME_TRUNCATE_FRACTIONAL and TIME_ROUND_FRACTIONAL turn that round), the bits of a FLOAT.
* *Numbers as text* have the zeros of ZEROFILL, and no exponent; in the lake numbers have no ZEROFILL, and a fraction of
  more than six digits may get an exponent where it becomes text.
* *Charsets.* A charset that has all characters of the earlier one takes its texts. Bytes that are no text in the
  earlier one become '?', or are refused by a strict session.
* *Padding.* CHAR loses the spaces at a text's end, and has all of them with PAD_CHAR_TO_FULL_LENGTH. A text that is cut
  short loses such spaces even in a strict session. BINARY gets zero bytes at its end.
* *Members* of ENUM and SET are converted by their labels, not by their numbers; a label that is a number may be taken
  for one, and labels that the collation takes for equal for one another.
* *Dates that no calendar has* stand in the lake as the server's text, in which a fraction of a second has digits.
* *Time zones.* The lake's column does not take a TIMESTAMP for another type. MySQL copies a TIMESTAMP through local
  time, changed or not: of the hour that comes twice when clocks are turned back, one half becomes the other.
* *Collations* decide how values compare, not what they are; but a generated column may compare them.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from menura.types import lake_format, wider_format

from agent.sources.mysql.ddl.charset_texts import ALL_OF_UNICODE, can_hold, has_all_characters, may_hold_invalid
from agent.sources.mysql.ddl.model import NOT_FIXED, ColumnDefinition
from agent.sources.mysql.ddl.sql_modes import Session
from agent.sources.mysql.ddl.types import VECTOR_ELEMENT_BYTES
from agent.sources.mysql.log.charsets import CHARACTER_BYTES
from agent.sources.mysql.types import INTEGER_KINDS, ColumnType, Kind, arrow_format, invalid_label_bytes

_WHOLE_NUMBER = re.compile(r"\s*[+-]?\s*[0-9]+\s*")
#: of a fraction that the lake writes without an exponent
_MOST_PLAIN_DIGITS = 6

SHIFTS_INSTANTS = "takes instants through local time, which makes one of the two hours when clocks are turned back"

_TEXTS = frozenset({Kind.CHAR, Kind.VARCHAR, Kind.TEXT})
_LISTS = frozenset({Kind.ENUM, Kind.SET})
_BYTES = frozenset({Kind.VARBINARY, Kind.BLOB})
_NUMBERS = INTEGER_KINDS | {Kind.DECIMAL}
_EXACT = _NUMBERS | {Kind.BIT, Kind.YEAR}
_REALS = frozenset({Kind.FLOAT, Kind.DOUBLE})
_ADDRESSES = {Kind.INET4: 15, Kind.INET6: 39, Kind.UUID: 36}
#: bytes of a character that ASCII has
_ASCII_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
#: halves of surrogate pairs are no text, and are kept in other bytes: on MariaDB, and of ucs2 on MySQL
_WITH_SURROGATES = frozenset({"utf8mb3", "utf8mb4", "ucs2", "utf32"})
#: their bytes that are no text become U+FFFD, which is never refused
_UNCHECKED = frozenset({"big5", "tis620"})
#: in UTF-8, of a character that is in no charset but those
_BASIC_PLANE_BYTES = 3


Check = Callable[[ColumnDefinition, ColumnDefinition, Session], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """Conversions of `before` to `after` are lossless where `loss` finds none."""

    before: frozenset[Kind]
    after: frozenset[Kind]
    #: "" or what becomes of values, which completes "varchar(10) to varchar(5) ..."
    loss: Check


def lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    """Why values of earlier rows may differ after a column was converted; "": all are the same.

    Of columns with values of their own; `converted` is about generated ones, and about those that a copy alone changes.

    >>> from agent.sources.mysql.ddl.model import ColumnDefinition as Column
    >>> was, now = (Column("a", ColumnType(Kind.DECIMAL, precision=12, scale=scale)) for scale in (4, 2))
    >>> lost(was, now, Session(mariadb=False)), lost(now, was, Session(mariadb=False, sql_mode=1 << 21))
    ('decimal(12,4) to decimal(12,2) rounds values', '')
    """
    if before.nullable and not after.nullable:
        if session.mariadb and after.type.kind is Kind.TIMESTAMP:
            return "NOT NULL makes the current time of NULL"
        if not session.is_strict:
            return "NOT NULL makes 0, an empty value or the current time of NULL"
    is_numbered = after.auto_increment and not before.auto_increment
    if is_numbered and (before.nullable or not session.keeps_zero):
        return "AUTO_INCREMENT gives new numbers to 0 and NULL"
    if shape_of(before) == shape_of(after):
        return ""
    found = _lost_by_type(before, after, session)
    return f"{words(before)} to {words(after)} {found}" if found else ""


def shape_of(column: ColumnDefinition) -> tuple[object, ...]:
    """What of a column decides which values it can hold, and as what expressions see them."""
    return column.type, column.length, column.decimals, column.shape, column.zerofill


def words(column: ColumnDefinition) -> str:
    """A column's type as a DBA writes it, without labels."""
    type_ = column.type
    name = type_.kind.value
    if type_.kind is Kind.GEOMETRY:
        return column.shape.lower() or name
    if type_.kind in (Kind.CHAR, Kind.VARCHAR, Kind.VARBINARY):
        name += f"({column.length})"
    elif type_.kind is Kind.VECTOR:
        name += f"({column.length // VECTOR_ELEMENT_BYTES})"
    elif type_.kind in (Kind.TEXT, Kind.BLOB):
        name = _SIZE_NAMES.get(column.length, "") + name
    elif type_.kind in _REALS and column.decimals not in (None, NOT_FIXED):
        name += f"({column.length},{column.decimals})"
    elif type_.kind not in _LISTS:
        name = str(ColumnType(type_.kind, False, type_.precision, type_.scale, type_.length_bytes))
    if type_.charset:
        name += f" character set {type_.charset}"
    return name + (" unsigned" if type_.unsigned else "") + (" zerofill" if column.zerofill else "")


_SIZE_NAMES = {0xFF: "tiny", 0xFFFFFF: "medium", 0xFFFFFFFF: "long"}


def _lost_by_type(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    kinds = before.type.kind, after.type.kind
    format_ = wider_format(*(lake_format(arrow_format(column.type)) for column in (before, after)))
    if format_ is None:
        return "needs another column in the lake"
    for rule in LOSSLESS:
        if kinds[0] in rule.before and kinds[1] in rule.after:
            return rule.loss(before, after, session) or (_lost_as_text(before, after) if format_ == "u" else "")
    return "is no conversion that is known to keep all values"


# --- numbers


def _bounds(column: ColumnDefinition) -> tuple[Fraction, Fraction]:
    """The least and the greatest value of a column with whole or decimal numbers."""
    type_ = column.type
    if type_.kind is Kind.YEAR:
        return Fraction(0), Fraction(2155)
    if type_.kind is Kind.BIT:
        return Fraction(0), Fraction(2**type_.precision - 1)
    if type_.kind is Kind.DECIMAL:
        most = Fraction(10**type_.precision - 1, 10**type_.scale)
        return Fraction(0) if type_.unsigned else -most, most
    bits = _BITS[type_.kind]
    if type_.unsigned:
        return Fraction(0), Fraction(2**bits - 1)
    return Fraction(-(2 ** (bits - 1))), Fraction(2 ** (bits - 1) - 1)


_BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.MEDIUMINT: 24, Kind.INT: 32, Kind.BIGINT: 64}


def _number_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    if after.type.scale < before.type.scale:
        return "rounds values"
    least, most = _bounds(after)
    if after.type.kind is Kind.BIT and _bounds(before)[0] < 0:
        return "takes the bits of negative values"
    fits = least <= _bounds(before)[0] and _bounds(before)[1] <= most
    return "" if fits or session.is_strict else "has no place for all values"


def _real_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    if before.type.kind is Kind.DOUBLE and after.type.kind is Kind.FLOAT:
        return "rounds values"
    is_fixed = after.decimals != NOT_FIXED
    if is_fixed and (before.decimals is None or after.decimals is None or before.type.kind is not after.type.kind):
        return "rounds values"
    if is_fixed and (after.decimals or 0) < (before.decimals or 0):
        return "rounds values"
    digits = [column.length - (column.decimals or 0) for column in (before, after)]
    fits = after.type.unsigned <= before.type.unsigned and (not is_fixed or digits[0] <= digits[1])
    return "" if fits or session.is_strict else "has no place for all values"


def _lost_as_text(before: ColumnDefinition, after: ColumnDefinition) -> str:
    """Numbers that are text in the lake, from now on or always."""
    numbers = [column for column in (before, after) if column.type.kind in _EXACT]
    if before.type.kind in _NUMBERS and before.zerofill is not False and after.type.kind in _TEXTS:
        return "writes zeros in front"
    if len(numbers) == 2 and before.type.scale != after.type.scale:
        return "writes other zeros behind the point"
    is_cast = any(arrow_format(column.type) != "u" and column.type.scale > _MOST_PLAIN_DIGITS for column in numbers)
    return "writes small fractions without the exponent that they have in the lake" if is_cast else ""


# --- texts


@dataclass(frozen=True, slots=True)
class _Longest:
    """What a column's longest text takes."""

    characters: int
    #: in a charset, at most
    bytes_in: Callable[[str], int]
    may_end_in_spaces: bool = False


def _longest(column: ColumnDefinition) -> _Longest | None:
    """None: not known."""
    kind, charset = column.type.kind, column.type.charset
    if kind in _NUMBERS:
        least, most = _bounds(column)
        digits = len(str(int(most))) + (column.type.scale + 1 if column.type.scale else 0)
        return _of_ascii(digits + (least < 0))
    if kind in _ADDRESSES:
        return _of_ascii(_ADDRESSES[kind])
    if kind in _LISTS:
        lengths = list(map(len, column.type.labels))
        return _of_charset(sum(lengths) + len(lengths) - 1 if kind is Kind.SET else max(lengths), charset)
    if kind is Kind.JSON:
        return _Longest(0xFFFFFFFF, lambda _: 0xFFFFFFFF)
    if not column.length:
        return None
    if kind is Kind.TEXT:
        characters = column.length // _ASCII_BYTES.get(charset, 1)
        made = _of_charset(characters, charset)
        most_bytes = column.length
        return _Longest(characters, lambda to: most_bytes if _keeps_bytes(charset, to) else made.bytes_in(to), True)
    made = _of_charset(column.length, charset)
    return _Longest(made.characters, made.bytes_in, kind is Kind.VARCHAR)


def _keeps_bytes(charset: str, other: str) -> bool:
    return charset == other or (charset, other) == ("utf8mb3", "utf8mb4")


def _of_ascii(characters: int) -> _Longest:
    return _Longest(characters, lambda charset: characters * _ASCII_BYTES.get(charset, 1))


def _of_charset(characters: int, charset: str) -> _Longest:
    def bytes_in(other: str) -> int:
        if charset == "ascii":
            return characters * _ASCII_BYTES.get(other, 1)
        is_basic = other == "utf8mb4" and charset not in ALL_OF_UNICODE
        return characters * (_BASIC_PLANE_BYTES if is_basic else CHARACTER_BYTES[other])

    return _Longest(characters, bytes_in)


def _length_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    """Of anything that becomes a text."""
    longest = _longest(before)
    if longest is None or not after.length:
        return "may cut values short"
    if longest.may_end_in_spaces and after.type.kind is Kind.CHAR:
        return "takes spaces from the end of values"
    if before.type.kind is Kind.CHAR and after.type.kind is not Kind.CHAR and session.pads_chars:
        return "puts spaces behind values, since the sql_mode has PAD_CHAR_TO_FULL_LENGTH"
    needed = longest.bytes_in(after.type.charset) if after.type.kind is Kind.TEXT else longest.characters
    if needed <= after.length:
        return ""
    if longest.may_end_in_spaces:
        return "cuts values short, spaces at their end even where the sql_mode is strict"
    return "" if session.is_strict else "cuts values short"


def _charset_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    was, now = before.type.charset, after.type.charset
    if _keeps_bytes(was, now):
        return ""
    if was in _WITH_SURROGATES and now in _WITH_SURROGATES and (session.mariadb or was == "ucs2"):
        return "writes bytes that are no text otherwise"
    if session.is_strict:
        return "loses bytes that are no text" if was in _UNCHECKED else ""
    if not has_all_characters(now, was):
        return "has no place for all characters"
    return "loses bytes that are no text" if may_hold_invalid(was, mariadb=session.mariadb) else ""


def _text_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    return _charset_lost(before, after, session) or _length_lost(before, after, session)


def _document_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    if after.type.charset not in ALL_OF_UNICODE and not session.is_strict:
        return "has no place for all characters"
    return _length_lost(before, after, session)


def _labels_lost_in_text(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    labels, charset = before.type.labels, after.type.charset
    if not all(map(_is_text, labels)) or not (session.is_strict or all(can_hold(charset, label) for label in labels)):
        return "has no place for all characters of the members"
    return _length_lost(before, after, session)


# --- members of ENUM and SET


def _is_text(label: str) -> bool:
    return invalid_label_bytes(label) is None


def _loose(label: str) -> str:
    """As any collation may see it."""
    return "".join(c for c in unicodedata.normalize("NFKD", label.casefold()) if not unicodedata.combining(c))


def _members_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    were, now = before.type.labels, after.type.labels
    if not all(map(_is_text, (*were, *now))):
        return "converts members that are no text"
    if len(set(map(_loose, now))) < len(now):
        return "may take members for one another"
    gone = set(were) - set(now)
    if gone and not (session.is_strict and all(_is_refused(label, now) for label in gone)):
        return "changes values that are members no more"
    kept = [label for label in now if label in were]
    if before.type.kind is Kind.SET and kept != [label for label in were if label in now]:
        return "puts members in another order"
    return ""


def _is_refused(label: str, others: tuple[str, ...]) -> bool:
    """Whether nothing is found for a member that is gone: as the same in another case, or as a number."""
    is_plain = label.isascii() and label.isprintable() and label.strip() and not _WHOLE_NUMBER.fullmatch(label)
    return bool(is_plain) and _loose(label) not in map(_loose, others)


# --- bytes, shapes, moments


def _bytes_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    length = before.type.length_bytes or before.length
    if length and after.length and length <= after.length:
        return ""
    return "" if session.is_strict else "cuts values short"


def _vector_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    if session.mariadb and before.length != after.length:
        return "puts zeros behind the numbers, or takes them away even where the sql_mode is strict"
    return _bytes_lost(before, after, session)


def _shape_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    is_any = after.shape == "GEOMETRY"
    return "" if is_any or session.is_strict else "has no place for all shapes"


def _fraction_lost(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    if after.type.precision < before.type.precision:
        return "rounds fractions of a second"
    is_refused = session.refuses_zero_instants if before.type.kind is Kind.TIMESTAMP else session.refuses_odd_dates
    if before.type.kind is Kind.TIMESTAMP and session.may_shift_instants:
        return SHIFTS_INSTANTS
    if before.type.kind is Kind.TIME or is_refused:
        return ""
    return "writes zero dates with other digits, and may make zero dates of those that no calendar has"


def _never(before: ColumnDefinition, after: ColumnDefinition, session: Session) -> str:
    return ""


def _set(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


#: the first rule for a pair of kinds decides; without one the conversion is not lossless
LOSSLESS: tuple[Rule, ...] = (
    # a number in a wider range, with no fewer digits behind the point
    Rule(_EXACT, _EXACT - {Kind.YEAR}, _number_lost),
    # FLOAT is exact in DOUBLE; (M,D) rounds only where it has fewer digits, or none had been rounded before
    Rule(_REALS, _REALS, _real_lost),
    # as printed, where it fits; the lake casts its numbers to the same text
    Rule(_NUMBERS, _TEXTS, _length_lost),
    Rule(_TEXTS, _TEXTS, _text_lost),
    # as printed
    Rule(frozenset(_ADDRESSES), _TEXTS, _length_lost),
    Rule(_LISTS, _TEXTS, _labels_lost_in_text),
    # MySQL: the text that it prints of the binary form, which is also what the lake has
    Rule(_set(Kind.JSON), _TEXTS, _document_lost),
    # by labels: at the end, in front, between; of a SET the order decides how a value is written
    Rule(_set(Kind.ENUM), _LISTS, _members_lost),
    Rule(_set(Kind.SET), _set(Kind.SET), _members_lost),
    # BINARY has all its zero bytes there too
    Rule(_set(Kind.BINARY) | _BYTES, _BYTES, _bytes_lost),
    # little-endian floats, as the lake has them
    Rule(_set(Kind.VECTOR), _BYTES, _bytes_lost),
    # MySQL: a vector may have fewer numbers than its type
    Rule(_set(Kind.VECTOR), _set(Kind.VECTOR), _vector_lost),
    # a column takes the shapes of its type alone
    Rule(_set(Kind.GEOMETRY), _set(Kind.GEOMETRY), _shape_lost),
    Rule(_set(Kind.TIME), _set(Kind.TIME), _fraction_lost),
    Rule(_set(Kind.DATETIME), _set(Kind.DATETIME), _fraction_lost),
    Rule(_set(Kind.TIMESTAMP), _set(Kind.TIMESTAMP), _fraction_lost),
)
