"""Names: what is allowed, and how a source's name becomes a path segment or a lake column.

Databases and tables may hold every character that their server permits; tenants, agents and
sources are ours and stay plain.
"""

import hashlib
import re
from urllib.parse import quote

_IDENTITY = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
MAX_SEGMENT_CHARS = 200
#: what Delta refuses in a column's name, and the escape sign itself
_LAKE_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=%]")


def is_identity(name: str) -> bool:
    """Whether `name` can be a tenant, an agent or a source: 1 to 63 of a-z, 0-9, '-', '_', not at an end.

    >>> is_identity("shop-1"), is_identity("../etc")
    (True, False)
    """
    return _IDENTITY.fullmatch(name) is not None


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


def lake_column(name: str) -> str:
    """The lake's name of a source's column: Delta's forbidden characters become %XX.

    >>> lake_column("unit price")
    'unit%20price'
    """
    return _LAKE_FORBIDDEN.sub(lambda match: f"%{ord(match[0]):02X}", name)
