"""Whether errors quote what a database server says in its own words: they may name anything that is on the server.

They do, until the policy of the database's host keeps something back. Then the words stand in the agent's own log only.
"""

import logging
from typing import Final

log = logging.getLogger("menura.server")


class ServerWords:
    """Of the process."""

    __slots__ = ("may_leave",)

    def __init__(self) -> None:
        self.may_leave = True

    def quoted(self, words: str) -> str:
        """What an error says of them."""
        if self.may_leave or not words:
            return words
        log.info("the server says", extra={"fields": {"words": words}})
        return "its words are in the agent's own log"


SERVER_WORDS: Final = ServerWords()
