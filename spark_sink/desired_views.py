"""The joined views that the lake shall have, as the control plane says: the whole list, never a change of it.

Comes in: the digest that each of its replies has, and the list where that is another one. Goes out: the list, to
whoever maintains views. Durable: the last good list, LAKE/_menura/desired_views.json, put before it is handed on. A
sink that begins hands that on until the control plane answers; a kill in between leaves the former list or the new one.

A list that can't be read, or that is not the one of the digest, changes nothing: the next reply has it asked for again.
"""

import logging
from collections.abc import Callable, Sequence

from menura.lake_report import views_digest
from menura.views.definition import MOST_DOCUMENT_BYTES, ViewDefinition, decode_views

from spark_sink.errors import SinkSettingInvalid
from spark_sink.lake.record_rows import FOLDER
from spark_sink.landed.storage import open_storage

PATH = f"{FOLDER}/desired_views.json"

logger = logging.getLogger("menura.sink")

Want = Callable[[Sequence[ViewDefinition]], None]


class DesiredViews:
    """For one thread."""

    def __init__(self, lake: str, want: Want) -> None:
        self._lake = lake
        self._want = want
        #: of what was handed on last; empty: nothing was
        self._digest = ""
        self._is_told = False

    def begin(self) -> None:
        """Hand on what the lake has, if it has one that can be read."""
        try:
            document = open_storage(self._lake).read(PATH, MOST_DOCUMENT_BYTES)
            if document is not None:
                self._hand_on(decode_views(document.decode()))
        except (OSError, ValueError, SinkSettingInvalid) as unreadable:
            logger.warning(
                "the last list of views can't be read, the control plane's is waited for lake=%s error=%s",
                self._lake,
                unreadable,
            )

    def follow(self, digest: str, ask: Callable[[], bytes]) -> None:
        """`digest`: of a reply, empty where it says nothing of views; `ask` gets the list. Raises what `ask` does."""
        if digest in ("", self._digest):
            return
        document = ask()
        try:
            views = decode_views(document.decode())
            if _digest(views) != digest:  # it has changed since, and the next reply has another digest
                return
            open_storage(self._lake).put(PATH, document)
        except (OSError, ValueError) as failure:
            if not self._is_told:
                logger.warning("the list of views is not taken over, trying on lake=%s error=%s", self._lake, failure)
            self._is_told = True
            return
        self._hand_on(views)

    def _hand_on(self, views: Sequence[ViewDefinition]) -> None:
        self._digest, self._is_told = _digest(views), False
        logger.info("views desired views=%d digest=%s", len(views), self._digest)
        self._want(views)


def _digest(views: Sequence[ViewDefinition]) -> str:
    return views_digest((view.tenant, view.name, view.digest) for view in views)
