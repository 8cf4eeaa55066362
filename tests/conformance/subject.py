"""What a case is, and what the frame asks of a server on which cases are run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.agent.gateway_double import SourceRecord, Table
from tests.compare import Comparison


@dataclass(frozen=True)
class Case:
    name: str
    #: in which its statements run
    database: str
    #: by table what the matrix calls it
    tables: dict[Table, str]
    before: tuple[str, ...]
    statements: tuple[str, ...]
    after: tuple[str, ...]
    is_setting: bool
    #: where its one table is compared through another one, and by what
    shown_by: str = ""
    key: tuple[str, ...] = ("id",)


class Subject(Protocol):
    """A running server."""

    #: tables that are changed behind each case: when that is there, the case was read
    sentinels: tuple[Table, ...]
    #: how often they have to be
    marks: int
    #: of statements that the server refuses
    errors: type[Exception]

    def entries(self) -> dict[str, object]:
        """The source in the agent's configuration."""

    def run(self, *statements: str, database: str) -> list[tuple[object, ...]]: ...

    def connect(self, database: str) -> Any:
        """An autocommitting connection of the driver."""

    def leave(self, connection: Any) -> None:
        """End it, and wait until the server has let go of what it held."""

    def restart(self) -> None: ...

    def begin(self, case: Case) -> None:
        """Its settings, and remember where the log is."""

    def logged(self) -> set[str]:
        """What has been in the log since: names of events or messages."""

    def mark(self) -> Callable[[SourceRecord], bool]:
        """Change the sentinels; whether what the agent has sent shows that it has read all up to there."""

    def compare(
        self, table: Table, changes: Sequence[Mapping[str, Any]], key: Sequence[str], sent: set[str]
    ) -> tuple[Comparison, bool]:
        """The rows that changes leave beside the server's, and whether columns that are not in `sent` were left out.

        `sent` empty: all are.
        """
