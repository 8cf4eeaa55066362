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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from deltalake.exceptions import DeltaError
from menura.errors import MenuraError
from menura.stores.reasons import reason_of
from menura.views.definition import InputName, ViewDefinition, ViewRefused, ViewState
from menura.views.reads import inputs_of
from menura.views.scheduled import every_seconds_of, is_scheduled
from pyspark.sql import SparkSession

from spark_sink.errors import SinkError
from spark_sink.ingest.divided_views import Run, spark_run
from spark_sink.ingest.masters import is_local
from spark_sink.ingest.recomputations import Recomputations, ViewName
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.view_inputs import levels, work_of
from spark_sink.ingest.view_process import ViewProcesses, folder_of
from spark_sink.ingest.view_rounds import ViewRounds
from spark_sink.ingest.view_standings import LOOK_SECONDS, Standing
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, refused_here, storage_failed
from spark_sink.ingest.views_file import ViewsFile
from spark_sink.lake.records import Records
from spark_sink.lake.tail import AT_ONCE
from spark_sink.views.maintain import ViewVersion, ViewWork
from spark_sink.views.scratch import remove_left
from spark_sink.views.store_folders import StoreSettings, remove_others

logger = logging.getLogger("menura.sink")

Tell = Callable[[tuple[ViewState, ...]], None]
#: is told which views there are, all of them, when others are wanted than before
Keep = Callable[[Collection[ViewName]], None]


class Views:
    """Of one sink. `lock`: held while records are written; `tell` is called with all states, from any thread.

    `file`: where the definitions are, read again as it changes; without it somebody says which are wanted.
    `beside`: does turns of views on a schedule, where that is not what does all turns.
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
        beside: ViewProcesses | None = None,
    ) -> None:
        self._lake = lake
        self._rounds = ViewRounds(records, lock)
        self._run = run
        #: None: nobody has said yet
        self._wanted: tuple[ViewDefinition, ...] | None = None
        self._standings: dict[ViewName, Standing] = {}
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
        self._recomputations = (
            Recomputations(run, self.wake) if beside is None else Recomputations(beside, self.wake, beside.end)
        )
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
        else:
            self._recomputations.stop()

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
            each.is_up(every[name]) and is_free if name in every else each.is_again() or each.is_merge_due()
            for name, each in list(self._standings.items())
        )

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
        self._rounds.record(done, self.states())
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
                self._standings.setdefault(name, Standing.building(wanted[name]))
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
        if held is not None and held.is_at_rest(definition):
            return None
        if self._recomputations.running == name:  # by the text that it had
            return None
        try:
            work = work_of(self._lake, definition, reads, self._standings)
        except (SinkError, OSError, DeltaError) as failed:
            self._stop(definition, failed if isinstance(failed, SinkError) else storage_failed(failed))
            return None
        if held is None or held.state.code or not held.has_done(work) or held.is_merge_due():
            return work
        if name in self._every:  # for its cuts
            return work
        state = replace(held.state, cuts=work.cuts)
        self._standings[name] = replace(held, work=work, state=state)
        return None

    def _note(self, work: ViewWork, outcome: ViewOutcome) -> None:
        definition, version = work.definition, outcome.version
        name = (definition.tenant, definition.name)
        if version is None:
            self._failed(definition, outcome.code, outcome.message)
            return
        self._standings[name] = self._standing(definition).done(work, version, self._every.get(name, 0))
        if version.is_new:
            logger.info(
                "view followed view=%s/%s version=%d changes=%d whole=%s cuts=%s",
                *name,
                version.version,
                version.changes,
                version.whole or "no",
                " ".join(f"{cut.source}:{cut.cut}" for cut in work.cuts),
            )

    def _standing(self, definition: ViewDefinition) -> Standing:
        return self._standings.get((definition.tenant, definition.name)) or Standing.building(definition)

    def _stop(self, definition: ViewDefinition, failure: MenuraError) -> None:
        said = refused_here(definition.name, failure) if isinstance(failure, ViewRefused) else failure
        self._failed(definition, failure.code, str(said))

    def _failed(self, definition: ViewDefinition, code: str, message: str) -> None:
        name = (definition.tenant, definition.name)
        held = self._standing(definition)
        after = held.failed(definition, code, message, self._every.get(name, 0))
        self._standings[name] = after
        if held.is_new_failure(definition, code):
            logger.warning("view %s view=%s/%s error=%s", after.state.state, *name, message)


def views_of(
    session: SparkSession, settings: SinkSettings, records: Records, lock: AbstractContextManager[object], tell: Tell
) -> Views:
    """Those of a sink, whose turns are Spark's tasks, or of processes beside it where it is on this machine alone."""
    waiting = AT_ONCE if settings.available_now else settings.waiting
    stores = StoreSettings(settings.view_stores) if settings.view_stores else None
    view_settings = ViewSettings(settings.lake, waiting, settings.keep_hours, stores=stores)
    run = spark_run(session, view_settings, leaves_core=not settings.available_now)
    file = ViewsFile(Path(settings.views)) if settings.views else None

    def keep(views: Collection[ViewName]) -> None:
        if stores is not None:
            remove_others(stores, settings.lake, views)

    remove_left()
    beside = None
    if is_local(session.sparkContext.master or ""):
        beside = ViewProcesses(view_settings, folder_of(settings.lake, settings.checkpoint))
        beside.clear()
    return Views(settings.lake, records, run, lock, tell, file, keep, beside)
