"""Watches the end of a server's log on a connection of its own, so that lag is known without reading events.

Goes out: the position, or None while it can't be had; and word of a log that was reset, which a stream from it does not
notice: it waits for ever at a place that is gone. A failure here is not reported: the stream that reads the same server
says what is wrong with it.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.errors import SourceError
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.server.connection import Facts, connect, server_errors
from agent.sources.mysql.server.server_log import ServerLog

if TYPE_CHECKING:
    from pymysql.connections import Connection

log = logging.getLogger("menura.watch")

POLL_SECONDS = 2.0
LOOK_SECONDS = 60.0
RECONNECT_SECONDS = 10.0
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Followed:
    facts: Facts
    position_kind: BinlogPositionKind


class LogEndWatch:
    def __init__(
        self,
        server: ServerConfig,
        source: str,
        on_end: Callable[[BinlogPosition | None], None],
        look: Callable[["Connection[Any]"], None],
    ) -> None:
        """`look`: at the server's settings, at the watch's beginning and then each `LOOK_SECONDS`."""
        self._server = server
        self._source = source
        self._on_end = on_end
        self._look = look
        self._on_reset: Callable[[], None] = lambda: None
        self._followed: _Followed | None = None
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{source}/watch", daemon=True)

    def start(self, on_reset: Callable[[], None]) -> None:
        self._on_reset = on_reset
        self._thread.start()

    def follow(self, facts: Facts, position_kind: BinlogPositionKind) -> None:
        """Watch a server of these facts, with positions of this kind."""
        self._followed = _Followed(facts, position_kind)
        self._wanted.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        self._wanted.wait()
        while not self._stopping.is_set():
            try:
                self._watch()
            except SourceError as error:
                self._on_end(None)
                log.debug("the log's end is not known", extra={"fields": {"source": self._source, "error": str(error)}})
                self._stopping.wait(RECONNECT_SECONDS)
            except Exception:
                self._on_end(None)
                log.exception("defect", extra={"fields": {"source": self._source}})
                self._stopping.wait(RECONNECT_SECONDS)

    def _look_at_settings(self, connection: "Connection[Any]") -> None:
        """Where a look is refused, the log's end is still worth knowing."""
        try:
            with server_errors("looking at the server's settings", self._server, self._source):
                self._look(connection)
        except SourceError as error:
            log.debug("settings are not known", extra={"fields": {"source": self._source, "error": str(error)}})

    def _watch(self) -> None:
        followed = self._followed
        assert followed is not None
        with closing(connect(self._server, self._source)) as connection:
            server_log = ServerLog(connection, self._server, self._source, followed.facts, followed.position_kind)
            before, look_at = BinlogPosition(), 0.0
            while not self._stopping.is_set() and self._followed == followed:
                end = server_log.end()
                self._on_end(end)
                if before.file and end.file and end.is_earlier_in_files(before):
                    self._on_reset()
                before = end
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_SECONDS
                    self._look_at_settings(connection)
                self._stopping.wait(POLL_SECONDS)
