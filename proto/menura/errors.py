"""What every error of Menura says, whoever raises it.

Each component has its own classes under `MenuraError` in its `errors` module. A class is one failure that an operator
can see; its `code` is stable, its `terminal` says whether it waits for somebody.
"""

import re
from typing import ClassVar, Protocol

_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class MenuraError(Exception):
    """One line: where it was, what was being done, what was found, what happened to the data, what to do.

    Fields hold no row value and no secret. A class that sets no `code` has its name in upper snake case:

    >>> class LeaseLost(MenuraError): ...
    >>> LeaseLost.code
    'LEASE_LOST'
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    terminal: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = _WORD_BEGINS.sub("_", cls.__name__).upper()

    def __init__(
        self,
        doing: str,
        found: str,
        *,
        data: str = "",
        remedy: str = "",
        source: str = "",
        database: str = "",
        table: str = "",
        position: str = "",
    ) -> None:
        self.doing = doing
        self.found = found
        self.data = data
        self.remedy = remedy
        self.source = source
        self.database = database
        self.table = table
        self.position = position
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.code}: {one_line(self)}"


class Said(Protocol):
    """What an error says, as it is raised or as it came over the wire."""

    doing: str
    found: str
    data: str
    remedy: str
    source: str
    database: str
    table: str
    position: str


def one_line(error: Said, most_chars: int | None = None) -> str:
    """Without its code; `most_chars`: of what it says, the beginning.

    >>> one_line(MenuraError("reading the log", "no such file", remedy="Name another", source="shop"))
    'reading the log (source shop): no such file. Name another.'
    """
    table = f"{error.database}.{error.table}" if error.database and error.table else error.table
    named = (("source", error.source), ("table", table), ("position", error.position))
    where = ", ".join(f"{word} {value}" for word, value in named if value)
    parts = [f"{error.doing}{f' ({where})' if where else ''}: {error.found}", error.data, error.remedy]
    return printable(" ".join(part if part.endswith(".") else f"{part}." for part in parts if part)[:most_chars])


def printable(text: str) -> str:
    """One line that says nothing to a terminal: a control character, or one that turns the writing, becomes a space.

    >>> printable("a\\r\\n\\x1b[2Jb\u00e9")
    'a   [2Jb\u00e9'
    """
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
