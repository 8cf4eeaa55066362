"""Where the stream is: behind the last finished transaction, or further where the server says that none was between.

Comes in: what the decoder has finished. Goes out: the `WalPosition` that a cut or a heartbeat names, and to
`seen_transactions` what was read. It never stands inside a transaction, and never goes back.
"""

from collections.abc import Callable

from agent.sources.postgresql.failures import Place
from agent.sources.postgresql.native.decoder import PgoutputDecoder
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.seen_transactions import SeenTransactions


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
        """Move the position to the last finished transaction."""
        self.published_at = self._clock()
        transactions = self._decoder.take_transactions()
        self.position = self.position.at(self.finished_lsn)
        self._seen.read(transactions, self.position)
        self._tell(self.position, self.last_commit_us)

    def place(self) -> Place:
        decoder = self._decoder
        return Place(self._source, self.position, decoder.transaction_lsn if decoder.in_transaction else 0)
