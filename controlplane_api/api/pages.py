"""Pages of lists. A cursor is where the last page ended: the key of its last row, which no caller needs to read.

A list of tens of thousands of rows costs the same page by page: each begins behind a key, and none counts rows from the
beginning. What is added or taken away between two pages is in the list or not; no other row comes twice or is left out.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from controlplane_api.errors import RequestInvalid

MAX_PAGE = 1_000
#: a limit where a list is not in pages
ALL = 1_000_000
#: a database's and a table's name at their longest
MAX_CURSOR_CHARS = 8_192

Cursor = Annotated[
    str,
    Query(
        max_length=MAX_CURSOR_CHARS,
        pattern="^[A-Za-z0-9_-]*={0,2}$",
        description="`next_cursor` of the page before; empty: the first page.",
    ),
]
Text = Annotated[str, Query(max_length=512, pattern="^[^\\x00]*$", description="Part of a name; empty: all.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Of one page.")]

Key = str | int
R = TypeVar("R")


def write_cursor(*key: Key) -> str:
    """
    >>> read_cursor(write_cursor("shop", "orders"), str, str), read_cursor("", int)
    (('shop', 'orders'), None)
    """
    return base64.urlsafe_b64encode(json.dumps(key, ensure_ascii=False).encode()).decode()


def read_cursor(cursor: str, *kinds: type[Key]) -> tuple[Key, ...] | None:
    """The key; None before the first page. Raises `RequestInvalid` for what no page has ended with."""
    if not cursor:
        return None
    try:
        key = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True).decode())
        fits = isinstance(key, list) and [type(part) for part in key] == list(kinds)
        if fits and all(_is_storable(part) for part in key):
            return tuple(key)
    except (ValueError, RecursionError):
        pass
    raise RequestInvalid("reading a page", "the cursor is not one of ours", remedy="Begin without a cursor.")


def page_of(found: Sequence[R], limit: int, key: Callable[[R], tuple[Key, ...]]) -> tuple[Sequence[R], str | None]:
    """The page's rows, and the next cursor, of one row more than the page may have."""
    shown = found[:limit]
    return shown, write_cursor(*key(shown[-1])) if len(found) > limit else None


def _is_storable(part: Key) -> bool:
    """Whether a database takes it: neither a NUL, nor half a character, nor a number beyond 64 bits."""
    if isinstance(part, int):
        return abs(part) < 2**63
    part.encode()
    return "\x00" not in part
