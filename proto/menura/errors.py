"""What every error of Menura says, whoever raises it.

Each component draws its own tree under `MenuraError` in its `errors` module. A class is one failure
that an operator can see; its `code` is stable, its `terminal` says whether it waits for somebody.
"""

from typing import ClassVar


class MenuraError(Exception):
    """One line: where it was, what was being done, what was found, what happened to the data, what to do.

    Fields hold no row value and no secret.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    terminal: ClassVar[bool] = True

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
        table = f"{self.database}.{self.table}" if self.database and self.table else self.table
        where = ", ".join(
            f"{word} {value}"
            for word, value in (("source", self.source), ("table", table), ("position", self.position))
            if value
        )
        parts = [f"{self.code}: {self.doing}{f' ({where})' if where else ''}: {self.found}", self.data, self.remedy]
        return " ".join(part if part.endswith(".") else f"{part}." for part in parts if part).replace("\n", " ")
