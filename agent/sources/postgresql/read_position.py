"""Where the stream is: behind the last finished transaction, or further where the server says that none was between.

Comes in: what the decoder has finished. Goes out: the `WalPosition` that a cut or a heartbeat names, and to
`seen_transactions` what was read. It never stands inside a transaction, and never goes back.
"""

from collections.abc import Callable

from agent.sources.postgresql.failures import Place
from agent.sources.postgresql.native.decoder import PgoutputDecoder
from agent.sources.postgresql.positions import LastTransaction, WalPosition
from agent.sources.postgresql.seen_transactions import SeenTransactions


class OtherHistory(Exception):
    """The server sends a transaction that it had not when its log was read there: its log was written anew."""

    def __init__(self, commit_lsn: int) -> None:
        self.commit_lsn = commit_lsn
        super().__init__(commit_lsn)


class ReadPosition:
    def __init__(
        self,
        source: str,
        start: WalPosition,
        decoder: PgoutputDecoder,
        seen: SeenTransactions,
        tell: Callable[[WalPosition, int], None],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._seen = seen
        self._tell = tell
        self._clock = clock
        self._start_lsn = start.lsn
        #: as of the last `publish`
        self.position = start
        self.published_at = clock()
        #: of the last transaction in a cut
        self.last_commit_us = 0

    @property
    def finished_lsn(self) -> int:
        """The position, were it published now."""
        return max(self.position.lsn, self._decoder.finished_lsn)

    def publish(self) -> None:
        """Move the position to the last finished transaction.

        Raises `OtherHistory` where a transaction of before the start came that had not come then.
        """
        self.published_at = self._clock()
        transactions = self._decoder.take_transactions()
        if transactions and transactions[0][2] <= self._start_lsn:
            raise OtherHistory(transactions[0][1])
        last = self._last(*transactions[-1]) if transactions else self.position.last
        self.position = self.position.at(self.finished_lsn).behind(last)
        self._seen.read(transactions, self.position)
        self._tell(self.position, self.last_commit_us)

    def _last(self, xid: int, commit_lsn: int, end_lsn: int) -> LastTransaction:
        """Of the last finished one; within the next one its time is not known any more."""
        decoder = self._decoder
        commit_us = decoder.commit_timestamp_us if decoder.transaction_lsn == commit_lsn else 0
        return LastTransaction(commit_lsn, end_lsn, xid, commit_us)

    def place(self) -> Place:
        decoder = self._decoder
        return Place(self._source, self.position, decoder.transaction_lsn if decoder.in_transaction else 0)
