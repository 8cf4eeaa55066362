"""Files of merges that came to nothing: removed by their names, as soon as nobody can name them any more.

Comes in: what a preparation or its commit has come to, and what is noted in the lake of preparations that no process
of this sink knows (`merge_record`). Goes out: nothing; what a store refuses to remove is tried with the next merge.
Where tasks of a preparation may live on (it failed, was cancelled, or its process was killed) its record stays for a
while, since they may write one more file: then that is found, too.
"""

import logging
import time
from collections.abc import Collection, Mapping

from deltalake.exceptions import DeltaError
from menura.stores.reasons import reason_of

from spark_sink.lake.merge_record import Unsettled, left_merges, read_record, remove_merge, settle

#: after which no task lives on whose job is over
LIVES_ON_SECONDS = 600.0

logger = logging.getLogger("menura.sink")


class LeftMerges:
    """Of one sink; for the thread that commits merges."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        #: when the files of those were removed whose records stay, by the monotonic clock
        self._emptied: dict[str, float] = {}

    def has_ended(self, preparation: str, kept: Collection[str], *, lives_on: bool) -> None:
        """Its commit names these; no commit names others, and none will."""
        try:
            remove_merge(self._lake, preparation, kept, forgets=not lives_on)
        except OSError as failed:
            _warn(failed, preparation)
            return
        if lives_on:
            self._emptied[preparation] = time.monotonic()

    def found(self, in_progress: Collection[str]) -> dict[str, list[str]]:
        """Others of which something is there, each with the names that were noted."""
        try:
            left = left_merges(self._lake)
        except OSError as failed:
            _warn(failed, "all")
            return {}
        self._emptied = {each: at for each, at in self._emptied.items() if each in left}
        return {each: left[each] for each in sorted(left.keys() - set(in_progress))}

    def settle(self, left: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
        """Which of their files stay; the caller keeps batches away, and is the lake's sink.

        One that is not among them keeps all its files for now, and the log says why.
        """
        found = {}
        for preparation, names in left.items():
            try:
                record = read_record(self._lake, preparation, names)
                found[preparation] = settle(record, names) if record is not None else frozenset[str]()
            except Unsettled as unsettled:
                logger.warning(
                    "files of a merge stay, since nobody knows yet whether a commit names them; their table is whole"
                    " and goes on, and the next merge asks again preparation=%s %s",
                    preparation,
                    unsettled,
                )
            except (OSError, DeltaError) as failed:
                _warn(failed, preparation)
        return found

    def remove(self, settled: Mapping[str, frozenset[str]]) -> None:
        now = time.monotonic()
        for preparation, kept in settled.items():
            emptied_at = self._emptied.get(preparation, now)
            self.has_ended(preparation, kept, lives_on=now - emptied_at < LIVES_ON_SECONDS)
            self._emptied[preparation] = emptied_at


def _warn(failed: Exception, preparation: str) -> None:
    """A record that can't be read is left alone with its files (EBADMSG)."""
    logger.warning(
        "files of merges that came to nothing are not removed yet, which the next merge tries again preparation=%s"
        " error=%s (%s)",
        preparation,
        type(failed).__name__,
        reason_of(failed),
    )
