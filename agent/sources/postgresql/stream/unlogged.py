"""Rows that are others than the logged changes make them: what the gateway hears, or the table's stop.

Comes in: why, and the policy of the table. Goes out: marks on events, whether a dump shall bring the rows; or, by the
policy `stop`, the table stops before. Durable with its cut; a cut that is lost is read again.
"""

from menura.v1 import changes_pb2

from agent.sources.postgresql.config import PostgresqlConfig
from agent.table_positions import Table
from agent.unlogged import UnloggedChanges

#: what a gateway takes
MOST_CHARS = 4_000


class UnloggedRows:
    """Of one stream."""

    def __init__(self, config: PostgresqlConfig) -> None:
        self._policy = config.unlogged
        self._most_per_hour = config.dump.max_rereads_per_hour

    def stops(self, table: Table) -> bool:
        """Whether the table's policy is to stop."""
        return self._policy.of(*table) is UnloggedChanges.STOP

    def mark(self, event: changes_pb2.TableEvent, why: str) -> None:
        """Rows with a lower number than the event's may be stale."""
        event.unlogged_changes = why if len(why) <= MOST_CHARS else f"{why[: MOST_CHARS - 1]}…"
        if self._policy.of(event.table.database, event.table.table) is UnloggedChanges.REREAD:
            event.reread = True
            event.most_rereads_per_hour = self._most_per_hour
