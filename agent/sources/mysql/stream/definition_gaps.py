"""Tables whose rows go by unread since nobody knows what they looked like, until a statement after which it is known.

Comes in: tables whose table map can't be read, and statements. Goes out: an event where such rows begin and one where
they end; each has a dump ordered by the table's policy, the second one since rows that went by may be later than what
the first dump has read. Durable with their cuts: rows never go by before the cut that tells of them. A kill between
leaves the first event; the table is found unreadable again, and says so again.
"""

from agent.capture.cuts import Cuts
from agent.capture.gaps import GapTexts, gap_event
from agent.errors import TableError, TableSchemaMismatch, TableSchemaUnknown
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.schema.definitions import Definitions
from agent.table_positions import Table
from agent.unlogged import UnloggedChanges


class DefinitionGaps:
    """Of one stream."""

    def __init__(
        self, config: MysqlConfig, decoder: BinlogDecoder, definitions: Definitions, read: ReadPosition, cuts: Cuts
    ) -> None:
        self._config = config
        self._decoder = decoder
        self._definitions = definitions
        self._read = read
        self._cuts = cuts
        #: from where on rows have gone by, and why
        self._open: dict[Table, tuple[BinlogPosition, str]] = {}

    def opens(self, table: Table, error: TableError) -> bool:
        """Whether rows of the table may go by from here on; else it has to stop."""
        if self._config.unlogged.of(*table) is UnloggedChanges.STOP:
            return False
        is_unknown = isinstance(error, TableSchemaUnknown | TableSchemaMismatch)
        if not (is_unknown and self._definitions.is_known_later(table)):
            return False
        if table not in self._open:
            self._read.publish()
            self._open[table] = self._read.position, error.found
            self._add(table, GapTexts(str(self._read.position), "", error.found))
        return True

    def close_known(self) -> None:
        """A statement has been followed: which tables are known now?"""
        for table in [table for table in self._open if isinstance(self._definitions.of(table), TableDefinition)]:
            since, why = self._open.pop(table)
            here = self._decoder.transaction_position or str(self._read.position)
            self._add(table, GapTexts(str(since), here, why))

    def _add(self, table: Table, texts: GapTexts) -> None:
        event = gap_event(table, texts, self._config)
        event.transaction_id = self._decoder.next_transaction_id
        event.commit_timestamp_us = self._decoder.commit_timestamp_us
        event.gsn = self._decoder.take_gsn()
        self._cuts.add_event(event)
