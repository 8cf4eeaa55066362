"""What one agent may say in a while, beside its rows: of reports so many rows and bytes, and so many streams.

Whoever has said more owes it, and pays before its next message is read: while it waits, nothing of it is held here. A
quota belongs to an agent's name and a role of streams, so that what it tells of tables keeps no rows and no heartbeats
waiting. It outlives the agent's sessions; those of the agents that came last are known. Nothing is durable. Lives on
the event loop alone.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from menura.roles import Role

from gateway.rate import Rate
from gateway.registry import AgentName

#: tables and sources told
ROWS_PER_SECOND, BURST_ROWS = 20_000, 1_000_000
#: of messages that are no batch of rows, as they travel
BYTES_PER_SECOND, BURST_BYTES = 4 << 20, 256 << 20
#: what an error counts as: each is written to the database and to the log
ERROR_ROWS = 1_000
#: what an agent's version counts as: it is written to the database
VERSION_ROWS = 1_000
#: what a stream's opening counts as: the database is asked several times
STREAM_ROWS = 100
#: of agents' roles, more than have streams at a time
MAX_QUOTAS = 262_144


@dataclass(frozen=True, slots=True)
class Quota:
    rows: Rate = field(default_factory=lambda: Rate(ROWS_PER_SECOND, BURST_ROWS))
    bytes: Rate = field(default_factory=lambda: Rate(BYTES_PER_SECOND, BURST_BYTES))

    async def paid(self) -> None:
        await self.rows.paid()
        await self.bytes.paid()


@dataclass(slots=True)
class Quotas:
    _of: "OrderedDict[tuple[AgentName, Role], Quota]" = field(default_factory=OrderedDict)

    def of(self, name: AgentName, role: Role) -> Quota:
        quota = self._of.setdefault((name, role), Quota())
        self._of.move_to_end((name, role))
        if len(self._of) > MAX_QUOTAS:
            self._of.popitem(last=False)
        return quota
