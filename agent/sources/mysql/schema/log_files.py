"""Which server's log was read last, and when its files were begun: after a reset others come under the same names.

Comes in: the server of each stream, and each file that the stream enters, with when the server began it. Goes out, when
a stream begins: the same, for `server.continuity` to compare. Durable, in the schema history: the server that was read
last and its newest files. When that is lost, nothing is claimed.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.read_transactions import ReadTransactions
from agent.sources.mysql.schema.versions import RecordUnreadable, position_of, position_text
from agent.sources.mysql.server.server_log import ServerProcess

#: committed positions stand in one of them
MOST_FILES = 100


@dataclass(slots=True)
class LogFiles:
    """Of the server that was read last."""

    history: SchemaHistory
    #: when it was last seen; None: no server was
    process: ServerProcess | None = None
    #: where its first stream began: only what was read behind names files of this server; None: not known
    since: BinlogPosition | None = None
    transactions: ReadTransactions = field(init=False)
    #: file: seconds since the epoch
    _begun: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transactions = ReadTransactions(self.history)
        try:
            kept: dict[str, Any] = json.loads(self.history.log_files())
            begun = {str(file): int(seconds) for file, seconds in kept["begun"].items()}
            since = position_of(kept["since"])
            self.process = ServerProcess(str(kept["server"]), int(kept["started"]), int(kept["connection"]))
            self.since, self._begun = since, begun
        except (ValueError, TypeError, KeyError, AttributeError, RecordUnreadable):  # none were kept, or other ones
            self._begun = {}

    @property
    def server(self) -> str:
        """Its name; '' where nothing is known."""
        return self.process.server if self.process is not None else ""

    def begun(self, file: str) -> int | None:
        """When the file that was read under this name was begun."""
        return self._begun.get(file)

    def entered(self, file: str, seconds: int) -> None:
        """The stream has come to this file."""
        if not file or not seconds or self._begun.get(file) == seconds:
            return
        self._begun[file] = seconds
        for oldest in sorted(self._begun, key=self._begun.__getitem__)[:-MOST_FILES]:
            del self._begun[oldest]
        self._keep()

    def follows(self, process: ServerProcess, start: BinlogPosition, *, goes_on: bool) -> None:
        """A stream of this server begins at `start`; `goes_on`: of the log that was read before."""
        if not goes_on or process.server != self.server or self.since is None:
            self._begun, self.since = {}, start
        self.process = process
        self.transactions.begin(start, goes_on=goes_on)
        self._keep()

    def _keep(self) -> None:
        assert self.process is not None
        assert self.since is not None
        process, since = self.process, position_text(self.since)
        kept = {"server": process.server, "started": process.started, "connection": process.connection, "since": since}
        self.history.keep_log_files(json.dumps({**kept, "begun": self._begun}))
