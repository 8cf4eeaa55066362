"""Rows in the log that their own transaction takes back.

Comes in: SAVEPOINT, ROLLBACK TO and ROLLBACK as they stand between the rows of a transaction, and a file that begins
inside of one. Goes out: rows that are forgotten in the decoder; where some have been sent already, `RowsUndone`: the
log is read again from the last committed cut, and those rows are then stepped over. Nothing here is durable.

What a server takes back, mostly it never logs. It logs the rows and the ROLLBACK where it could not cut them out of its
cache, e.g. MariaDB after a temporary table was made in the same transaction. Rows of tables that can't roll back
are no part of this: both servers log row events of such tables in a group of their own, which ends with COMMIT
(MySQL: THD::binlog_write_table_map takes the cache by the engine; MariaDB: use_trans_cache), also where one statement
changes both kinds. So each row before a ROLLBACK has been undone.

Two things can't be told apart, and stop the tables whose rows they concern: a savepoint whose name was set twice (the
second may be that of a stored function, which leaves the first in place), and a transaction that has no end because the
server was killed (its engine decides whether the rows count).
"""

import re
import unicodedata
from dataclasses import dataclass, field

from agent.sources.mysql.failures import rows_uncertain
from agent.sources.mysql.log.events import EventBodyError
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.stream.context import Undone
from agent.sources.mysql.stream.table_router import RowsUndone, TableRouter

_NAMED = re.compile(r"(?P<verb>SAVEPOINT|ROLLBACK TO|RELEASE SAVEPOINT) `(?P<name>(?:[^`]|``)*)`")


@dataclass(slots=True)
class _Savepoint:
    """Where rows began after it; a later one of the same name does not hide the first from us."""

    name: str
    first_gsn: int
    #: the number of its statement, from 1
    statement: int


@dataclass(slots=True)
class _Open:
    """One transaction."""

    number: int
    savepoints: list[_Savepoint] = field(default_factory=list)
    statements: int = 0


class Rollbacks:
    """The savepoints of the transaction that is being read."""

    def __init__(self, decoder: BinlogDecoder, read: ReadPosition, router: TableRouter) -> None:
        self._decoder = decoder
        self._read = read
        self._router = router
        self._open = _Open(0)

    def statement(self, text: str) -> None:
        """SAVEPOINT, ROLLBACK TO, RELEASE SAVEPOINT, or the ROLLBACK that ends the transaction."""
        if self._open.number != self._decoder.next_transaction_id:
            self._open = _Open(self._decoder.next_transaction_id)
        self._open.statements += 1
        if text.upper() == "ROLLBACK":
            self._undo(self._decoder.transaction_first_gsn, after=0)
            self._decoder.transaction_rolled_back()
            return
        found = _NAMED.fullmatch(text)
        if found is None:
            raise EventBodyError("a savepoint's statement in a form that the servers don't log")
        name = _as_compared(found["name"])
        if found["verb"] == "SAVEPOINT":
            self._router.savepoint(self._open.statements)
            self._open.savepoints.append(_Savepoint(name, self._decoder.next_gsn, self._open.statements))
        elif found["verb"] == "ROLLBACK TO":
            self._roll_back_to(name)

    def interrupted(self) -> None:
        """The file that begins here was begun by a server that had been killed inside the open transaction."""
        self._router.fail_since(
            self._decoder.transaction_first_gsn, rows_uncertain, "the server was killed while it wrote the transaction"
        )
        self._decoder.transaction_abandoned()

    def _roll_back_to(self, name: str) -> None:
        places = [place for place, savepoint in enumerate(self._open.savepoints) if savepoint.name == name]
        if not places:
            raise EventBodyError("a rollback to a savepoint that was not set")
        first, last = self._open.savepoints[places[0]], self._open.savepoints[places[-1]]
        if first.first_gsn != last.first_gsn:
            found = "it rolls back to a savepoint whose name was set twice, so which rows count is not known"
            self._router.fail_since(first.first_gsn, rows_uncertain, found)
        self._undo(last.first_gsn, after=last.statement)
        self._router.rolled_back(self._open.statements)
        del self._open.savepoints[places[-1] + 1 :]

    def _undo(self, first_gsn: int, after: int) -> None:
        """Forget the rows from this number on."""
        if not self._decoder.drop_rows(first_gsn):
            raise RowsUndone(Undone(self._router.group(), after, self._open.statements))


def _as_compared(name: str) -> str:
    """The servers compare names of savepoints without case and accents.

    >>> _as_compared("Ä") == _as_compared("a")
    True
    """
    return "".join(sign for sign in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(sign))
