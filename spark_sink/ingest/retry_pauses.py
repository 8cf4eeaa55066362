"""When stopped tables are tried again by themselves: each after a pause that doubles while it fails. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_sink.work import TableId

FIRST_SECONDS = 60.0
LONGEST_SECONDS = 3600.0


@dataclass(slots=True)
class RetryPauses:
    """Moments are monotonic seconds."""

    first_seconds: float = FIRST_SECONDS
    #: of each table how long it waits, and until when
    _pauses: dict[TableId, tuple[float, float]] = field(default_factory=dict)

    def due(self, tables: Iterable[TableId], now: float) -> set[TableId]:
        """Those of the tables, which are all that wait, whose pause is over; a new one's begins now."""
        waiting = set(tables)
        self._pauses = {table: pause for table, pause in self._pauses.items() if table in waiting}
        for table in waiting - self._pauses.keys():
            self._pauses[table] = (self.first_seconds, now + self.first_seconds)
        found = {table for table, (_, until) in self._pauses.items() if now >= until}
        for table in found:
            seconds = min(self._pauses[table][0] * 2, LONGEST_SECONDS)
            self._pauses[table] = (seconds, now + seconds)
        return found
