"""Whether a log's files are still those that were read: after a reset others come under the same names and GTIDs.

Comes in: each file that the stream enters, and when the server began it. Goes out, when a stream begins: what the file
of its position shows of a reset. Durable, in the schema history: the newest files of the server that was read last.
When that is lost, or the server is another one, nothing is claimed.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from agent.mysql.schema.history import SchemaHistory

#: committed positions stand in one of them
MOST_FILES = 100


@dataclass(slots=True)
class LogFiles:
    """Of one server, by a name that no other server has."""

    history: SchemaHistory
    server: str
    #: file: seconds since the epoch
    _begun: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            kept: dict[str, Any] = json.loads(self.history.log_files())
            if kept["server"] == self.server:
                self._begun = {str(file): int(seconds) for file, seconds in kept["begun"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):  # none were kept, or it can't be told which
            self._begun = {}

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

    def forget(self) -> None:
        """No position depends on them."""
        if self._begun:
            self._begun = {}
            self._keep()

    def _keep(self) -> None:
        self.history.keep_log_files(json.dumps({"server": self.server, "begun": self._begun}))
