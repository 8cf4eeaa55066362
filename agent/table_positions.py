"""How far each table of a source is: which transactions are delivered for which table.

Pure. Each table T has a position P_T: what it has. The stream reads from the least of all P_T; a transaction
is delivered for T only when it is not in P_T. Tables whose P_T lies past the stream's place are *ahead*: each
cut carries the whole list of them until the stream has passed. A table that failed at a row has a *pending stop*: it is
read again up to the transaction before, and stops there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from menura.errors import MenuraError
from menura.v1 import changes_pb2, config_pb2

from agent.positions import Position, least

#: (database, table)
Table = tuple[str, str]
P_co = TypeVar("P_co", bound=Position, covariant=True)


@dataclass(frozen=True, slots=True)
class Stop(Generic[P_co]):
    """A table is complete up to `position` and no further."""

    table: Table
    position: P_co
    error: MenuraError

    def __post_init__(self) -> None:
        self.error.position = str(self.position)


class TablePositions(Generic[P_co]):
    """Which tables take part, and which of them are ahead of the stream."""

    def __init__(self, tables: Mapping[Table, P_co], otherwise: P_co) -> None:
        self._ahead: list[tuple[P_co, set[Table]]] = []
        self._stopped: set[Table] = set()
        self._tables = frozenset(tables)
        self._start = least(tables.values()) if tables else otherwise
        for table, position in tables.items():
            if self._start.covers(position):
                continue
            group = next((found for found, _ in self._ahead if found.same_place(position)), None)
            if group is None:
                self._ahead.append((position, {table}))
            else:
                next(members for found, members in self._ahead if found is group).add(table)

    @property
    def start(self) -> P_co:
        """Where the stream begins; without tables where it was to begin otherwise."""
        return self._start

    @property
    def any_ahead(self) -> bool:
        return bool(self._ahead)

    def is_synced(self, table: Table) -> bool:
        return table in self._tables and table not in self._stopped

    def synced(self) -> list[Table]:
        return sorted(self._tables - self._stopped)

    def is_ahead(self, table: Table) -> bool:
        return any(table in members for _, members in self._ahead)

    def ahead(self) -> Mapping[Table, P_co]:
        """Tables that are ahead, and where they are."""
        return {table: position for position, members in self._ahead for table in members}

    def skipped(self, has_it: Callable[[P_co], bool]) -> set[Table]:
        """Tables that have a transaction already; `has_it`: whether it lies before a position."""
        skipped: set[Table] = set()
        for position, members in self._ahead:
            if has_it(position):
                skipped |= members
        return skipped

    def passed(self, position: Position) -> bool:
        """Forget who is no longer ahead of the stream's `position`; True when somebody caught up."""
        remaining = [(place, members) for place, members in self._ahead if not position.covers(place)]
        if len(remaining) == len(self._ahead):
            return False
        self._ahead = remaining
        return True

    def stop(self, table: Table) -> None:
        self._stopped.add(table)
        for _, members in self._ahead:
            members.discard(table)
        self._ahead = [(position, members) for position, members in self._ahead if members]

    def ahead_messages(self) -> list[changes_pb2.Ahead]:
        return [
            changes_pb2.Ahead(position=position.to_proto(), tables=[name_message(table) for table in sorted(members)])
            for position, members in self._ahead
        ]


def name_message(table: Table) -> config_pb2.TableName:
    return config_pb2.TableName(database=table[0], table=table[1])


def names(messages: Iterable[config_pb2.TableName]) -> list[Table]:
    return [(message.database, message.table) for message in messages]
