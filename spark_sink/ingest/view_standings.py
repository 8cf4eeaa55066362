"""How one view stands in the driver: what its last turn came to, and when it may have the next one.

Comes in: what a turn was given and came to, or why there was none. Goes out: a `Standing`, with the state that the
control plane is told. Pure but for the clocks; nothing is kept, since a view's own tables say where it is.
"""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from menura.instants import now_us
from menura.lake_report import clipped
from menura.views.definition import ViewDefinition, ViewState
from menura.views.scheduled import every_said

from spark_sink.errors import ViewInputsNotReady, ViewStorageFailed, ViewTaskLost
from spark_sink.views.maintain import ViewVersion, ViewWork

FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 900.0
#: between two looks at the definitions' file; and, where no batch comes, at inputs that are not there
LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 30.0

#: of a state
MOST_MESSAGE_CHARS = 1000

#: faults that are none of a query's
_OF_MACHINES = (ViewStorageFailed.code, ViewTaskLost.code)


@dataclass(frozen=True, slots=True)
class Standing:
    state: ViewState
    #: what its last turn was given, and came to; None: it failed
    work: ViewWork | None = None
    version: ViewVersion | None = None
    #: when it is to be tried again after it failed, by the monotonic clock
    again_at: float = 0.0
    pause_seconds: float = 0.0

    @classmethod
    def building(cls, definition: ViewDefinition) -> "Standing":
        """Of a view that has had no turn yet."""
        return cls(ViewState(definition.tenant, definition.name, definition.digest, "building"))

    def is_at_rest(self, definition: ViewDefinition) -> bool:
        """Whether it has failed at this text, and is not to be tried yet; one that waits is, as its tables move."""
        is_same = self.state.digest == definition.digest
        return is_same and self.state.state == "stopped" and self.again_at > time.monotonic()

    def has_done(self, work: ViewWork) -> bool:
        """But for its cuts."""
        done = self.work
        return done is not None and (done.definition, done.inputs) == (work.definition, work.inputs)

    def is_again(self) -> bool:
        """Whether it has failed, and is to be tried again."""
        return bool(self.state.code) and self.again_at <= time.monotonic()

    def is_merge_due(self) -> bool:
        return self.version is not None and 0 < self.version.merge_at_us <= now_us()

    def is_due(self, digest: str, every_seconds: int) -> bool:
        """Of a view that is recomputed on a schedule."""
        if self.state.digest != digest or (self.version is None and not self.state.code):
            return True
        if self.state.code:  # one that waits is, as its tables move
            return self.state.state == "waiting" or self.again_at <= time.monotonic()
        assert self.version is not None
        return not 0 <= now_us() - self.version.computed_us < every_seconds * 1_000_000  # a clock may go back

    def is_up(self, every_seconds: int) -> bool:
        """Of a view that is recomputed on a schedule: due, and not tried just now."""
        return self.is_again() if self.state.code else self.is_due(self.state.digest, every_seconds)

    def is_new_failure(self, definition: ViewDefinition, code: str) -> bool:
        return (self.state.code, self.state.digest) != (code, definition.digest)

    def failed(self, definition: ViewDefinition, code: str, message: str, every_seconds: int) -> "Standing":
        """`every_seconds`: 0 of a view that is followed."""
        waits = code == ViewInputsNotReady.code
        first, longest = (LOOK_SECONDS, LONGEST_LOOK_SECONDS) if waits else (FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        pause = first if self.is_new_failure(definition, code) else min(self.pause_seconds * 2, longest)
        if not waits and code not in _OF_MACHINES:
            pause = max(pause, float(every_seconds))
        state = replace(
            self.state,
            digest=definition.digest,
            state="waiting" if waits else "stopped",
            code=code,
            message=clipped(message, MOST_MESSAGE_CHARS),
        )
        return replace(self, state=state, again_at=time.monotonic() + pause, pause_seconds=pause)

    def done(self, work: ViewWork, version: ViewVersion, every_seconds: int) -> "Standing":
        """`every_seconds`: 0 of a view that is followed."""
        before = self.state
        state = replace(
            before,
            digest=work.definition.digest,
            state="following",
            code="",
            message=_recomputed(version, every_seconds) if every_seconds else _computed_whole(before, version),
            cuts=version.cuts if every_seconds else work.cuts,
            version=version.version,
            rows=version.rows,
            changes=version.changes if version.is_new else before.changes,
            applied_at_us=version.computed_us or (now_us() if version.is_new else before.applied_at_us),
        )
        return Standing(state, work, version)


def _computed_whole(before: ViewState, version: ViewVersion) -> str:
    """Of a view that is followed: why its last version was computed from all rows; empty: it was not, or is new."""
    if not version.is_new:
        return before.message if before.state == "following" else ""
    if not version.whole or before.version <= 0:
        return ""
    return clipped(f"Its last version was computed from all rows of its tables: {version.whole}", MOST_MESSAGE_CHARS)


def _recomputed(version: ViewVersion, every_seconds: int) -> str:
    """Of a view that is recomputed on a schedule."""
    last = datetime.fromtimestamp(version.computed_us // 1_000_000, UTC)
    return f"It is recomputed every {every_said(every_seconds)}, last at {last:%Y-%m-%d %H:%M:%S} UTC"
