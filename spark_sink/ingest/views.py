"""Views in the driver: which are wanted, when each gets its next version, and how each stands.

Comes in: definitions, whole each time (a file, or what the control plane has sent), and that a batch is in the lake.
Goes out: Spark tasks of the views whose inputs have moved (`divided_views`), those that read other views after these;
then a boundary of the views in LAKE/_menura/cuts, and their states. Durable is what the tasks wrote
(`spark_sink.views`); all that is kept here is read back from there, so a kill costs a look at each view.

A view takes its inputs at one cut of each source: that of the views that it reads, else the newest one. Where these
are at different cuts, it waits for them. A view that fails stops alone, at its last version, and is tried again after
a pause that grows; so is one whose inputs are not there, are being dumped, or have stopped. One that is recomputed on a
schedule has its turn once it is due, beside the others (`recomputations`), and fails until its next time.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deltalake.exceptions import DeltaError
from menura.errors import MenuraError
from menura.instants import now_us
from menura.lake_report import clipped
from menura.stores.reasons import reason_of
from menura.views.definition import (
    VIEW_SOURCE,
    InputName,
    ViewCut,
    ViewDefinition,
    ViewRefused,
    ViewState,
)
from menura.views.reads import inputs_of
from menura.views.scheduled import every_said, every_seconds_of, is_scheduled
from pyspark.sql import SparkSession

from spark_sink.errors import (
    CutBeforeHorizon,
    CutNotComplete,
    SinkError,
    TableNotAtCut,
    TableNotInLake,
    ViewInputsNotReady,
    ViewStorageFailed,
    ViewTaskLost,
)
from spark_sink.ingest.divided_views import Run, spark_run
from spark_sink.ingest.recomputations import Recomputations, ViewName
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, refused_here, storage_failed
from spark_sink.ingest.views_file import ViewsFile
from spark_sink.lake.boundaries import read_boundaries
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import Records
from spark_sink.lake.tail import AT_ONCE
from spark_sink.reading_at import lake_at
from spark_sink.views.inputs import InputAt
from spark_sink.views.maintain import ViewVersion, ViewWork, view_table_id
from spark_sink.views.store_folders import StoreSettings, remove_others
from spark_sink.work import CutSeen, Outcome, Result, TableId

FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 900.0
#: between two looks at the definitions' file; and, where no batch comes, at inputs that are not there
LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 30.0

#: of a state
MOST_MESSAGE_CHARS = 1000

#: faults that are none of a query's
_OF_MACHINES = (ViewStorageFailed.code, ViewTaskLost.code)

logger = logging.getLogger("menura.sink")

Tell = Callable[[tuple[ViewState, ...]], None]
#: is told which views there are, all of them, when others are wanted than before
Keep = Callable[[Collection[ViewName]], None]


@dataclass(frozen=True, slots=True)
class _Standing:
    state: ViewState
    #: what its last turn was given, and came to; None: it failed
    work: ViewWork | None = None
    version: ViewVersion | None = None
    #: when it is to be tried again after it failed, by the monotonic clock
    again_at: float = 0.0
    pause_seconds: float = 0.0

    def is_at_rest(self, definition: ViewDefinition, now: float) -> bool:
        """Whether it has failed at this text, and is not to be tried yet; one that waits is, as its tables move."""
        is_same = self.state.digest == definition.digest
        return is_same and self.state.state == "stopped" and self.again_at > now

    def has_done(self, work: ViewWork) -> bool:
        """But for its cuts."""
        done = self.work
        return done is not None and (done.definition, done.inputs) == (work.definition, work.inputs)

    def is_due(self, digest: str, every_seconds: int) -> bool:
        """Of a view that is recomputed on a schedule."""
        if self.state.digest != digest or (self.version is None and not self.state.code):
            return True
        if self.state.code:  # one that waits is, as its tables move
            return self.state.state == "waiting" or self.again_at <= time.monotonic()
        assert self.version is not None
        return not 0 <= now_us() - self.version.computed_us < every_seconds * 1_000_000  # a clock may go back


class Views:
    """Of one sink. `lock`: held while records are written; `tell` is called with all states, from any thread.

    `file`: where the definitions are, read again as it changes; without it somebody says which are wanted.
    """

    def __init__(
        self,
        lake: str,
        records: Records,
        run: Run,
        lock: AbstractContextManager[object],
        tell: Tell = lambda _states: None,
        file: ViewsFile | None = None,
        keep: Keep = lambda _views: None,
    ) -> None:
        self._lake = lake
        self._records = records
        self._run = run
        self._lock = lock
        #: None: nobody has said yet
        self._wanted: tuple[ViewDefinition, ...] | None = None
        self._standings: dict[ViewName, _Standing] = {}
        self._round = -1
        self._moved = threading.Condition()
        self._is_due = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        #: held through a turn: two of one view at once would remove each other's files
        self._turning = threading.Lock()
        self._file = file
        self._tell = tell
        self._keep = keep
        self._kept: Collection[ViewName] | None = None
        #: seconds, of those that are recomputed on a schedule
        self._every: dict[ViewName, int] = {}
        self._recomputations = Recomputations(run, self.wake)
        #: that are not recomputed any more before the end
        self._finished: set[ViewName] | None = None

    def want(self, definitions: Sequence[ViewDefinition]) -> None:
        """All of the views that there shall be; from any thread."""
        with self._moved:
            self._wanted = tuple(definitions)
        self.wake()

    def wake(self) -> None:
        """Something of their inputs may have moved."""
        with self._moved:
            self._is_due = True
            self._moved.notify_all()

    def start(self) -> None:
        """Once."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._follow, name="views", daemon=True)
        self._thread.start()
        self.wake()

    def stop(self, seconds: float, *, finish: bool) -> None:
        """`finish`: after one more round, with all that is in the lake, however long the one in progress takes."""
        with self._moved:
            self._stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        if finish:
            self._read_file()
            self._finished = set()
            self.turn()
            while self._recomputations.wait():
                self.turn()

    def states(self) -> tuple[ViewState, ...]:
        return tuple(each.state for each in self._standings.values())

    def _follow(self) -> None:
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._is_due or self._stopping, LOOK_SECONDS)
                if self._stopping:
                    return
                is_due, self._is_due = self._is_due, False
            is_due |= self._read_file()
            if not is_due and not self._waits():
                continue
            try:
                self.turn()
            except Exception as failed:  # noqa: BLE001  (the thread's top: views go on with the next look)
                logger.warning("views not looked at error=%s", f"{type(failed).__name__}: {reason_of(failed)}")

    def _read_file(self) -> bool:
        found = self._file.changed() if self._file is not None else None
        if found is not None:
            self.want(found)
        return found is not None

    def _waits(self) -> bool:
        """Whether a view is to be tried again or is due, or has changes that are to be merged."""
        if self._recomputations.has_outcome:
            return True
        is_free = self._recomputations.running is None
        every = self._every
        return any(
            self._is_up(each, every[name]) and is_free
            if name in every
            else _is_again(each, time.monotonic()) or _is_merge_due(each, now_us())
            for name, each in list(self._standings.items())
        )

    @staticmethod
    def _is_up(held: _Standing, every_seconds: int) -> bool:
        """Of a view that is recomputed on a schedule: due, and not tried just now."""
        if held.state.code:
            return _is_again(held, time.monotonic())
        return held.is_due(held.state.digest, every_seconds)

    def turn(self) -> None:
        """Give each view that can have one its next version; one turn after the other, whoever asks."""
        with self._turning:
            self._turn()

    def _turn(self) -> None:
        with self._moved:
            wanted = {(each.tenant, each.name): each for each in self._wanted or ()}
            is_told = self._wanted is not None
        if is_told and wanted.keys() != self._kept:
            self._kept = frozenset(wanted)
            self._keep(self._kept)
        self._standings = {name: each for name, each in self._standings.items() if name in wanted}
        reads = self._reads(wanted)
        done = self._recomputed(wanted)
        for level in levels(reads):
            followed = [name for name in level if name not in self._every]
            works = [work for name in followed if (work := self._work(wanted[name], reads[name])) is not None]
            outcomes = self._run(works) if works else ()
            done += [each for each in outcomes if each.version is not None and self._is_to_record(each, each.version)]
            for work, outcome in zip(works, outcomes, strict=True):
                self._note(work, outcome)
        for name in reads.keys() - {name for level in levels(reads) for name in level}:
            self._stop(wanted[name], ViewRefused("the view reads itself, by other views or at once"))
        self._record(done)
        self._recompute_next(wanted, reads)
        self._tell(self.states())

    def _reads(self, wanted: Mapping[ViewName, ViewDefinition]) -> dict[ViewName, tuple[InputName, ...]]:
        """Of each view, but for those whose texts say none."""
        reads: dict[ViewName, tuple[InputName, ...]] = {}
        every: dict[ViewName, int] = {}
        for name, definition in wanted.items():
            try:
                if is_scheduled(definition.sql):
                    every[name] = every_seconds_of(definition.sql)
                reads[name] = inputs_of(definition.sql)
            except ViewRefused as refused:
                self._stop(definition, refused)
        self._every = every
        return reads

    def _recomputed(self, wanted: Mapping[ViewName, ViewDefinition]) -> list[ViewOutcome]:
        """What has come of the one that was recomputed, where it is wanted as it was then; to be recorded."""
        self._recomputations.keep(wanted)
        found = self._recomputations.take()
        if found is None or wanted.get((found[1].tenant, found[1].name)) != found[0].definition:
            return []
        work, outcome = found
        is_to_record = outcome.version is not None and self._is_to_record(outcome, outcome.version)
        self._note(work, outcome)
        return [outcome] if is_to_record else []

    def _recompute_next(
        self, wanted: Mapping[ViewName, ViewDefinition], reads: Mapping[ViewName, tuple[InputName, ...]]
    ) -> None:
        """Begin with one that is due, where none is being recomputed."""
        if self._recomputations.running is not None:
            return
        circular = reads.keys() - {name for level in levels(reads) for name in level}
        due = []
        for name in self._every.keys() & reads.keys() - circular - (self._finished or set()):
            held = self._standings.get(name)
            if held is None or held.is_due(wanted[name].digest, self._every[name]):
                due.append(name)
        for name in self._recomputations.in_turn(due):
            work = self._work(wanted[name], reads[name])
            if work is not None:
                self._standings.setdefault(name, _Standing(ViewState(*name, wanted[name].digest, "building")))
                if self._finished is not None:
                    self._finished.add(name)
                self._recomputations.begin(work)
                return

    def _is_to_record(self, outcome: ViewOutcome, version: ViewVersion) -> bool:
        """Also what a turn has made of which nothing came back: of a killed sink, or of a job that Spark lost."""
        held = self._standings.get((outcome.tenant, outcome.name))
        return version.is_new or held is None or held.version is None or held.version.version != version.version

    def _work(self, definition: ViewDefinition, reads: Sequence[InputName]) -> ViewWork | None:
        """What the view's turn is given; None where it has none now."""
        name = (definition.tenant, definition.name)
        held = self._standings.get(name)
        if held is not None and held.is_at_rest(definition, time.monotonic()):
            return None
        if self._recomputations.running == name:  # by the text that it had
            return None
        try:
            work = self._inputs(definition, reads)
        except (SinkError, OSError, DeltaError) as failed:
            self._stop(definition, failed if isinstance(failed, SinkError) else storage_failed(failed))
            return None
        if held is None or held.state.code or not held.has_done(work) or _is_merge_due(held, now_us()):
            return work
        if name in self._every:  # for its cuts
            return work
        state = replace(held.state, cuts=work.cuts)
        self._standings[name] = replace(held, work=work, state=state)
        return None

    def _inputs(self, definition: ViewDefinition, reads: Sequence[InputName]) -> ViewWork:
        """Raises `SinkError` where they are not there, or not together."""
        found: list[InputAt] = []
        cuts: dict[str, ViewCut] = {}
        for name in reads:
            if not name.is_view:
                continue
            held = self._standings.get((definition.tenant, name.table))
            if held is None or held.version is None:
                raise _not_ready(f"the view {name} has no version")
            for cut in held.state.cuts:
                if cuts.setdefault(cut.source, cut).cut != cut.cut:
                    raise _not_ready(f"views that it reads are at different cuts of {cut.source}")
            table = view_table_id(definition.tenant, name.table)
            found.append(InputAt(name, table, held.version.changelog_version, held.version.current_version))
        for source in dict.fromkeys(name.source for name in reads if not name.is_view):
            tables = [
                TableId(definition.tenant, *(name.source, name.database, name.table))
                for name in reads
                if name.source == source
            ]
            at = {(definition.tenant, source): cuts[source].cut} if source in cuts else None
            try:
                read = lake_at(self._lake, tables, cuts=at)
            except (TableNotInLake, CutBeforeHorizon, CutNotComplete, TableNotAtCut) as absent:
                raise _not_ready(absent.found) from absent
            cuts[source] = ViewCut(source, read.sources[0].cut, read.sources[0].committed_us)
            found += [
                InputAt(
                    InputName(each.table.source, each.table.database, each.table.table),
                    each.table,
                    each.changelog_version,
                    each.current_version,
                )
                for each in read.tables
            ]
        return ViewWork(
            definition, tuple(sorted(found, key=lambda each: each.name)), tuple(cuts[name] for name in sorted(cuts))
        )

    def _note(self, work: ViewWork, outcome: ViewOutcome) -> None:
        definition, version = work.definition, outcome.version
        name = (definition.tenant, definition.name)
        if version is None:
            self._failed(definition, outcome.code, outcome.message)
            return
        held = self._standings.get(name)
        before = held.state if held is not None else ViewState(*name, definition.digest, "building")
        is_followed = name not in self._every
        state = replace(
            before,
            digest=definition.digest,
            state="following",
            code="",
            message=_computed_whole(before, version) if is_followed else _recomputed(version, self._every[name]),
            cuts=work.cuts if is_followed else version.cuts,
            version=version.version,
            rows=version.rows,
            changes=version.changes if version.is_new else before.changes,
            applied_at_us=version.computed_us or (now_us() if version.is_new else before.applied_at_us),
        )
        self._standings[name] = _Standing(state, work, version)
        if version.is_new:
            logger.info(
                "view followed view=%s/%s version=%d changes=%d whole=%s cuts=%s",
                *name,
                version.version,
                version.changes,
                version.whole or "no",
                " ".join(f"{cut.source}:{cut.cut}" for cut in work.cuts),
            )

    def _stop(self, definition: ViewDefinition, failure: MenuraError) -> None:
        said = refused_here(definition.name, failure) if isinstance(failure, ViewRefused) else failure
        self._failed(definition, failure.code, str(said))

    def _failed(self, definition: ViewDefinition, code: str, message: str) -> None:
        name = (definition.tenant, definition.name)
        held = self._standings.get(name) or _Standing(ViewState(*name, definition.digest, "building"))
        waits = code == ViewInputsNotReady.code
        is_new = (held.state.code, held.state.digest) != (code, definition.digest)
        first, longest = (LOOK_SECONDS, LONGEST_LOOK_SECONDS) if waits else (FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        pause = first if is_new else min(held.pause_seconds * 2, longest)
        if name in self._every and not waits and code not in _OF_MACHINES:
            pause = max(pause, float(self._every[name]))
        state = replace(
            held.state,
            digest=definition.digest,
            state="waiting" if waits else "stopped",
            code=code,
            message=clipped(message, MOST_MESSAGE_CHARS),
        )
        self._standings[name] = replace(held, state=state, again_at=time.monotonic() + pause, pause_seconds=pause)
        if is_new:
            logger.warning("view %s view=%s/%s error=%s", state.state, *name, message)

    def _record(self, done: Sequence[ViewOutcome]) -> None:
        """A boundary of each tenant's views, of which some have a new version."""
        for tenant in dict.fromkeys(each.tenant for each in done):
            with self._lock:
                if self._round < 0:
                    self._round = _last_round(self._records)
                self._round += 1
                states = [each.state for (of, _), each in self._standings.items() if of == tenant]
                committed_us = max((cut.committed_us for state in states for cut in state.cuts), default=0)
                boundary = CutSeen(tenant, VIEW_SOURCE, 0, self._round, 0, now_us(), committed_us, committed_us)
                outcomes = [
                    _recorded(each, self._round) for each in done if each.tenant == tenant and each.version is not None
                ]
                self._records.record_batch([boundary], outcomes, whole=True)


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


def views_of(
    session: SparkSession, settings: SinkSettings, records: Records, lock: AbstractContextManager[object], tell: Tell
) -> Views:
    """Those of a sink, whose turns are Spark's tasks."""
    waiting = AT_ONCE if settings.available_now else settings.waiting
    stores = StoreSettings(settings.view_stores) if settings.view_stores else None
    view_settings = ViewSettings(settings.lake, waiting, settings.keep_hours, stores=stores)
    run = spark_run(session, view_settings, leaves_core=not settings.available_now)
    file = ViewsFile(Path(settings.views)) if settings.views else None

    def keep(views: Collection[ViewName]) -> None:
        if stores is not None:
            remove_others(stores, settings.lake, views)

    return Views(settings.lake, records, run, lock, tell, file, keep)


def _is_again(held: _Standing, now: float) -> bool:
    return bool(held.state.code) and held.again_at <= now


def _is_merge_due(held: _Standing, at_us: int) -> bool:
    return held.version is not None and 0 < held.version.merge_at_us <= at_us


def _recorded(done: ViewOutcome, cut: int) -> Outcome:
    assert done.version is not None
    return Outcome(
        view_table_id(done.tenant, done.name),
        Result.APPLIED,
        0,
        cut,
        done.version.changes,
        changelog_version=done.version.changelog_version,
        current_version=done.version.current_version,
    )


def _last_round(records: Records) -> int:
    """The highest number that views of any tenant have."""
    cuts = open_table(records.cuts_folder)
    tenants = {table.tenant for table in records.table_folders.tables() if table.source == VIEW_SOURCE}
    found = [read_boundaries(cuts, tenant, VIEW_SOURCE).found for tenant in tenants]
    return max((each[-1].cut for each in found if each), default=0)


def _not_ready(found: str) -> ViewInputsNotReady:
    return ViewInputsNotReady(
        "reading a view's inputs",
        found,
        data="The view stays at its last version; tables and other views go on",
        remedy="It goes on by itself once they are there together",
    )


def levels(reads: Mapping[ViewName, Sequence[InputName]]) -> list[list[ViewName]]:
    """Views whose inputs are tables or views before them; those that read each other in turn are left out.

    >>> b = ("acme", "b")
    >>> levels({b: [InputName.of_view("a")], ("acme", "a"): [], ("acme", "c"): [InputName.of_view("c")]})
    [[('acme', 'a')], [('acme', 'b')]]
    """
    left = {
        name: {(name[0], each.table) for each in found if each.is_view} & reads.keys() for name, found in reads.items()
    }
    found: list[list[ViewName]] = []
    while ready := sorted(name for name, above in left.items() if not above & left.keys()):
        found.append(ready)
        left = {name: above for name, above in left.items() if name not in ready}
    return found
