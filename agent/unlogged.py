"""What happens to a table whose server changed rows without logging them.

Pure. Comes in: `unlogged_changes` of a source's configuration and of its filter's rules. Goes out: the policy of each
table. `reread`: the table streams on, and a dump is ordered that brings the rows as they are. `stop`: it stops before
the change. `note`: it streams on, and its state says for ever that earlier rows may be stale.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class UnloggedChanges(StrEnum):
    REREAD = "reread"
    STOP = "stop"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class UnloggedPolicy:
    default: UnloggedChanges = UnloggedChanges.REREAD
    #: by the filter's key: `table` or `database.table`, which wins
    tables: Mapping[str, UnloggedChanges] = field(default_factory=dict)

    def of(self, database: str, table: str) -> UnloggedChanges:
        """
        >>> policy = UnloggedPolicy(UnloggedChanges.STOP, {"log": UnloggedChanges.NOTE})
        >>> policy.of("shop", "log").value, policy.of("shop", "orders").value
        ('note', 'stop')
        """
        return self.tables.get(f"{database}.{table}") or self.tables.get(table) or self.default
