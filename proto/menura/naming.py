"""Names: what is allowed, and how a source's name becomes a path segment or a lake column.

Databases and tables may hold every character that their server permits; tenants, agents and
sources are ours and stay plain.
"""

import hashlib
import re
import shlex
import socket
from functools import lru_cache
from urllib.parse import quote

from menura.change_batch import is_reserved

#: a table's database, and its name there
TableName = tuple[str, str]

_IDENTITY = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
MAX_SEGMENT_CHARS = 200
#: names that a URL can't have, and those that stand for them
_DOTS = re.compile(r"~*\.{1,2}")
#: what Delta refuses in a column's name, the escape sign itself, the one small letter that a capital one becomes at
#: words' ends alone, and what would end a name as `set_aside` does
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=%\N{GREEK SMALL LETTER FINAL SIGMA}]|~(?=\d+\Z)")
#: ranges of letters of which all servers know that a capital one is its small one
_CAPITALS = (
    ("A", "Z"),
    ("\u00c0", "\u021e"),
    ("\u0386", "\u03ab"),
    ("\u0400", "\u0480"),
    ("\u048c", "\u04be"),
    ("\u04d0", "\u04f4"),
    ("\u0531", "\u0556"),
    ("\u1e00", "\u1e94"),
    ("\u1ea0", "\u1ef8"),
    ("\uff21", "\uff3a"),
)
#: columns of Delta's change feed, which a user may turn on
_OF_CHANGE_FEED = frozenset(("_change_type", "_commit_version", "_commit_timestamp"))
_SET_ASIDE = re.compile(r"~\d+\Z")


def is_identity(name: str) -> bool:
    """Whether `name` can be a tenant, an agent or a source: 1 to 63 of a-z, 0-9, '-', '_', not at an end.

    >>> is_identity("shop-1"), is_identity("../etc")
    (True, False)
    """
    return _IDENTITY.fullmatch(name) is not None


def local_name(where: str) -> str:
    """An identity for what works on `where` on this machine: the same after a restart, another one elsewhere."""
    host = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower())[:48].strip("-") or "local"
    return f"{host}-{hashlib.sha256(where.encode()).hexdigest()[:8]}"


def url_segment(name: str) -> str:
    """A database's or table's name in a path of the API. Whoever reads a URL folds `.` and `..`, also written as %2E.

    >>> [url_segment(name) for name in ("a/b", "..", "~.", "~x")]
    ['a%2Fb', '~..', '~~.', '~x']
    """
    return f"~{name}" if _DOTS.fullmatch(name) else quote(name, safe="")


def named_by(segment: str) -> str:
    """The name that `url_segment` has written, once the escapes of URLs are undone.

    >>> named_by("~.."), named_by("~~."), named_by("~x")
    ('..', '~.', '~x')
    """
    return segment[1:] if segment.startswith("~") and _DOTS.fullmatch(segment) else segment


def path_segment(name: str) -> str:
    """One path segment for a database's or table's name; different names give different segments.

    >>> path_segment("order lines"), path_segment("..")
    ('order%20lines', '%2E.')
    """
    segment = quote(name, safe="")
    if segment.startswith((".", "_")):  # neither a parent folder nor what Spark takes for hidden
        segment = f"%{ord(segment[0]):02X}{segment[1:]}"
    if len(segment) > MAX_SEGMENT_CHARS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        segment = f"{segment[: MAX_SEGMENT_CHARS - 17].rsplit('%', 1)[0]}~{digest}"
    return segment


def command_table(database: str, table: str) -> str:
    """The table as a shell hands it to `menura`: DATABASE.TABLE, in backticks where a name needs them.

    >>> command_table("shop", "orders"), command_table("a.b", "c`d")
    ('shop.orders', "'`a.b`.`c``d`'")
    """
    names = [
        name if "." not in name and "`" not in name else f"`{name.replace('`', '``')}`" for name in (database, table)
    ]
    return shlex.quote(".".join(names))


def sync_anew(source: str, database: str, table: str) -> str:
    """The command that begins a table anew which has stopped, and brings its rows as they are."""
    return f"menura sync start {source} {command_table(database, table)} --from dump"


def sync_stop(source: str, database: str, table: str) -> str:
    """The command that stops a table."""
    return f"menura sync stop {source} {command_table(database, table)}"


def sync_retry(source: str, database: str, table: str) -> str:
    """The command that tries a table again at once that has stopped, also in a lake."""
    return f"menura sync retry {source} {command_table(database, table)}"


def quarantine_of(source: str) -> str:
    """The command that shows a source's quarantine; with --retry or --skip it ends it."""
    return f"menura sources quarantine {source}"


def sync_resync(source: str, database: str, table: str) -> str:
    """The command that begins a table anew, whatever its state, also where a sink has stopped it."""
    return f"menura sync resync {source} {command_table(database, table)}"


def dump_anew(source: str, database: str, table: str) -> str:
    """The command that dumps a table beside its stream."""
    return f"menura dump start {source} {command_table(database, table)}"


@lru_cache(maxsize=10_000)
def lake_column(name: str) -> str:
    """The lake's name of a source's column: the same for each column of this name, whatever others there are or were.

    Columns that a server tells apart have names here that differ also without case, as Spark compares them
    (``str.lower``). Written as %XX, their bytes in UTF-8, are: signs that Delta refuses; capital letters of which not
    all servers know that they are a small one; the first sign of a name that the sink or Delta uses itself; and the "~"
    of a name that could be one of the changelog's own (`set_aside`).

    >>> lake_column("unit price"), lake_column("_gsn"), lake_column("a~1")
    ('unit%20price', '%5Fgsn', 'a%7E1')
    >>> lake_column("Größe"), lake_column("ﬁ"), lake_column("\N{KELVIN SIGN}")
    ('Größe', 'ﬁ', '%E2%84%AA')
    """
    escaped = _FORBIDDEN.sub(lambda match: _escaped(match[0]), name)
    if not name.isascii():
        escaped = "".join(sign if is_plain(sign) else _escaped(sign) for sign in escaped)
    if is_reserved(escaped) or escaped.lower() in _OF_CHANGE_FEED:
        escaped = _escaped(escaped[0]) + escaped[1:]
    return escaped


def is_plain(letter: str) -> bool:
    """Whether it is no capital letter, or one that all servers take for its small one, which has no other capital."""
    small = letter.lower()
    if small == letter:
        return True
    is_known = any(first <= letter <= last for first, last in _CAPITALS)
    return is_known and len(small) == 1 and small.upper() == letter


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode())


def set_aside(column: str, number: int) -> str:
    """What a changelog calls a lake's column whose name another one has taken; no `lake_column` gives such a name."""
    return f"{column}~{number}"


def name_before(column: str) -> str:
    """A changelog's column's name, before it was `set_aside` if it was.

    >>> name_before("note~12"), name_before("note")
    ('note', 'note')
    """
    return _SET_ASIDE.sub("", column)
