"""What a plug-in is: a class whose methods are called for transactions and their rows.

Comes in: each transaction of a source, in the source's order: `begin`, its rows, `commit`. Rows stand as plain Python
values by the source's names of columns: int, float, Decimal, str, bytes, bool, date, datetime (with UTC where the
column is an instant), timedelta. A value that Python's type can't hold, such as a date of year 0, is its text.

What is promised: `checkpoint` comes behind the last transaction of a cut of the source, at which all tables are as they
were at one moment. After a kill or a failure all since the last checkpoint comes again, so a `Plugin` sees each change
at least once. A `TransactionalPlugin` keeps its position beside its data and sees each change exactly once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_sink.work import TableId

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Transaction:
    tenant: str
    source: str
    #: 0: no transaction of the source, but rows that a dump has read, and those that its end takes away
    id: int
    #: when it was committed at the source, in microseconds since 1970
    committed_us: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a row belongs to."""

    table: TableId
    transaction: Transaction
    #: grows with each change of a source
    gsn: int
    #: in the source's words
    position: str
    #: None: the table has no key
    key: Values | None
    #: of columns whose value the log did not carry; it stands as None
    unknown: frozenset[str]


class PluginError(Exception):
    """Raise it with what is wrong and what to do. Its text is shown, so no value of a row may stand in it."""


class Plugin:
    """Override what is of use; without that a call does nothing.

    An exception in a call rolls the transaction back. All since the last checkpoint comes again, or the plug-in is
    stopped.
    """

    #: whether it reads options of the form env:NAME and file:PATH itself, e.g. at each login; a pipe reads them once
    reads_references: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options`: those of its table in the file, and `name`, the plug-in's."""

    def ddl(self, table: TableId, columns: Mapping[str, str], key: Sequence[str]) -> None:
        """The columns, their types in the source's words ('' where not known), and those of the key: once before a
        table's first change of a run, and whenever they have changed since. Behind a checkpoint.
        """

    def begin(self, transaction: Transaction) -> None:
        """Its rows follow."""

    def insert(self, row: Values, change: Change) -> None:
        """Also a row that a dump has read, which may be known already (`change.transaction.id` is 0 then)."""

    def update_before(self, row: Values, change: Change) -> None:
        """What an update found, unless it is not known; `update_after` follows. An update that changes the key is a
        `delete` and an `insert`.
        """

    def update_after(self, row: Values, change: Change) -> None:
        """What an update left."""

    def delete(self, row: Values, change: Change) -> None:
        """Also a row that a dump did not find any more."""

    def truncate(self, change: Change) -> None:
        """All rows of the table are gone."""

    def commit(self, transaction: Transaction, gsn: int) -> None:
        """Behind its last row, whose number is `gsn`."""

    def rollback(self, transaction: Transaction) -> None:
        """Of what came since `begin` nothing counts: a call has failed, or the run ends here."""

    def checkpoint(self, position: str) -> None:
        """Make durable what was committed: it does not come again once this has returned."""

    def close(self) -> None:
        """The run ends."""


class TransactionalPlugin(Plugin, ABC):
    """One that keeps its position itself, in one step with what it made of the changes up to there."""

    @abstractmethod
    def position(self) -> str | None:
        """What the last `checkpoint` gave that is durable; None: there was none. Drops all that came since.

        Asked before all other calls, and after each failure.
        """

    @abstractmethod
    def checkpoint(self, position: str) -> None:
        """Make this position durable, and with it what was committed since the last one: both or neither."""


def without_values(change: Change) -> str:
    """Of an insert that can't be made, for a `PluginError`: a row has another key, and the log lacks values of it."""
    return (
        f"a row of {change.table} got another key at {change.gsn}, and the source's log does not have its"
        f" {', '.join(sorted(change.unknown))}. Begin anew, without the position, with from = 'state'"
    )
