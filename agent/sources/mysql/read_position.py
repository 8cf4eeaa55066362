"""Where the stream is: behind the last finished transaction, and in which file.

Comes in: what the decoder has finished, rotations, events between transactions. Goes out: the `BinlogPosition`
that a cut or a heartbeat names. It never stands inside a transaction.
"""

from collections.abc import Callable

from agent.sources.mysql.failures import Place
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition, moved


class ReadPosition:
    def __init__(
        self,
        source: str,
        server_uuid: str,
        start: BinlogPosition,
        decoder: BinlogDecoder,
        tell: Callable[[BinlogPosition, int], None],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self.server_uuid = server_uuid
        self._decoder = decoder
        self._tell = tell
        self._clock = clock
        #: as of the last `publish`
        self.position = start
        self.file = start.file
        self._offset = start.offset
        self.published_at = clock()
        #: of the last transaction in a cut
        self.last_commit_us = 0
        #: key, number and statement's time of the last transaction with a GTID, see the decoder; None: there was none
        self.last_gtid: tuple[str, int, int] | None = None
        if self.file:
            decoder.set_file(self.file)

    @property
    def offset(self) -> int:
        """In `file`: behind the last finished transaction or the last event that belongs to none."""
        return max(self._offset, self._decoder.transaction_end_offset)

    def publish(self) -> None:
        """Move the position to the last finished transaction."""
        self.published_at = self._clock()
        offset = self.offset
        runs = self._decoder.take_gtids()
        if runs:
            self.last_gtid = (runs[-1][0], runs[-1][2], self._decoder.finished_statement_timestamp)
        # With GTIDs, file and offset are those of the last transaction: they may serve where a table knows no GTID.
        has_moved = self.position.gtids is None and (self.file, offset) != (
            self.position.file,
            self.position.offset,
        )
        if runs or has_moved:
            self.position = moved(self.position, runs, self.server_uuid, self.file, offset)
        self._tell(self.position, self.last_commit_us)

    def rotated(self, file: str, offset: int) -> None:
        """The next event is in another file; the one before it has been read."""
        self.publish()
        self.file, self._offset = file, offset
        self._decoder.set_file(file)

    def passed(self, offset: int) -> None:
        """An event that belongs to no transaction has gone by."""
        self._offset = max(self._offset, offset)

    def place(self) -> Place:
        return Place(self._source, self.file, self.position)
