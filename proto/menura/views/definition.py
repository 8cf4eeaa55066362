"""What a view is called, what it reads, and what is known of it: values that control plane and sink share.

Comes in: the document that says which views there shall be. Goes out: its definitions. The lake says a view's state as
`ViewState`. Nothing here reads SQL.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from menura.errors import MenuraError
from menura.naming import is_identity

#: in the place of a source, which can't have this name
VIEW_SOURCE = "~views"
VIEW_DATABASE = "views"
FORMAT = 1
MOST_VIEWS = 256
MOST_DOCUMENT_BYTES = 1 << 20
MOST_SQL_BYTES = 16 << 10

#: intervals of views that are recomputed, and columns of their keys, as commands and requests have them
EVERY, KEY_COLUMN = r"^[1-9][0-9]{0,5}[mhd]$", r"^[^(),\x00-\x1f]{1,128}$"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class ViewRefused(MenuraError):
    """A view that can't be kept up to date, or whose text can't be read; the place counts from 1, 0 is the whole."""

    def __init__(
        self,
        found: str,
        *,
        line: int = 0,
        column: int = 0,
        remedy: str = "",
        doing: str = "planning a view",
        data: str = "Nothing was changed",
        lacks_column: bool = False,
    ) -> None:
        """`lacks_column`: a column that the text names is not there, as far as whoever plans it knows."""
        place = f" (line {line}, column {column})" if line else ""
        super().__init__(doing, f"{found}{place}", data=data, remedy=remedy)
        #: what was found, without the place
        self.reason = found
        self.line = line
        self.column = column
        self.lacks_column = lacks_column


#: rows of one table that look up what a batch changed; beyond, a version is computed from all rows, and compared
MOST_TOUCHED = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class InputName:
    """A table of a source, or a view."""

    source: str
    database: str
    table: str

    @classmethod
    def of_view(cls, name: str) -> "InputName":
        return cls(VIEW_SOURCE, VIEW_DATABASE, name)

    @property
    def is_view(self) -> bool:
        return self.source == VIEW_SOURCE

    def __str__(self) -> str:
        return self.table if self.is_view else f"{self.source}.{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its name in the lake, with the lake's type as an Arrow C format string (`menura.types`)."""

    name: str
    type: str
    #: of integers that a query computes: those of an INT or a BIGINT (`terms`)
    digits: int = 20


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table or view, and those that tell its rows apart."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def find(self, name: str) -> Column | None:
        """Names are compared without case, as Spark does."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    tenant: str
    name: str
    sql: str

    @property
    def digest(self) -> str:
        """Of its text: another text has another one."""
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ViewCut:
    """Up to where a source's tables are in a view."""

    source: str
    cut: int
    #: no transaction up to it committed later, by the source's clock; 0: not known
    committed_us: int


@dataclass(frozen=True, slots=True)
class ViewState:
    """How a view stands in a lake."""

    tenant: str
    name: str
    #: of the definition that it follows
    digest: str
    #: waiting, building, following or stopped
    state: str
    code: str = ""
    message: str = ""
    cuts: tuple[ViewCut, ...] = ()
    #: how many times it was changed
    version: int = 0
    #: -1: not known
    rows: int = -1
    #: of the last version
    changes: int = 0
    applied_at_us: int = 0


def is_view_name(name: str) -> bool:
    """Whether a view may have this name.

    >>> is_view_name("orders_by_day"), is_view_name("Orders"), is_view_name("1st")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def encode_views(definitions: Iterable[ViewDefinition]) -> str:
    views = [{"tenant": each.tenant, "name": each.name, "sql": each.sql} for each in definitions]
    return json.dumps({"format": FORMAT, "views": views}, ensure_ascii=False)


def decode_views(document: str) -> tuple[ViewDefinition, ...]:
    """Raises ValueError with the reason.

    >>> views = (ViewDefinition("acme", "big", "SELECT id FROM shop.shop.orders"),)
    >>> decode_views(encode_views(views)) == views
    True
    """
    if len(document.encode()) > MOST_DOCUMENT_BYTES:
        raise ValueError(f"it has more than {MOST_DOCUMENT_BYTES} bytes")
    try:
        found = json.loads(document)
    except RecursionError as deep:
        raise ValueError("it is nested too deeply") from deep
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("views"), list):
        raise ValueError(f'it is no object with "format": {FORMAT} and a list "views"')
    if len(found["views"]) > MOST_VIEWS:
        raise ValueError(f"it has more than {MOST_VIEWS} views")
    views = tuple(map(_view, found["views"]))
    if len({(each.tenant, each.name) for each in views}) < len(views):
        raise ValueError("it has two views of one name")
    return views


def _view(found: object) -> ViewDefinition:
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("tenant", "name", "sql")):
        raise ValueError("a view is no object with the texts tenant, name and sql")
    if not is_identity(found["tenant"]):
        raise ValueError("a view's tenant is no tenant's name")
    if not is_view_name(found["name"]):
        raise ValueError(f"a view is called {found['name'][:80]!r}: a name is a-z, then at most 62 of a-z, 0-9 and _")
    if len(found["sql"].encode()) > MOST_SQL_BYTES:
        raise ValueError(f"the SQL of {found['name']} has more than {MOST_SQL_BYTES} bytes")
    return ViewDefinition(found["tenant"], found["name"], found["sql"])
