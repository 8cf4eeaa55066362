"""What a Spark task does with views: the next version of each, an outcome each, whatever happens to it.

A fault of a view is its outcome, never the task's end, so that other views go on.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

from deltalake.exceptions import DeltaError
from menura.errors import MenuraError
from menura.stores.options import StorageOptions, use
from menura.stores.reasons import reason_of
from menura.views.definition import ViewRefused
from menura.views.scheduled import is_scheduled

from spark_sink.errors import SinkError, ViewStorageFailed, ViewUnexpected
from spark_sink.lake.retention import clean, is_due
from spark_sink.lake.tail import Waiting
from spark_sink.views.division import ALONE, Dividing, Division
from spark_sink.views.maintain import ViewVersion, ViewWork, follow, view_table_id
from spark_sink.views.query_process import BOUNDS, Bounds
from spark_sink.views.recompute import recompute
from spark_sink.views.store_folders import StoreSettings
from spark_sink.work import CHANGELOG, CURRENT, TableId

logger = logging.getLogger("menura.sink")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ViewOutcome:
    """What came of a view's turn."""

    tenant: str
    name: str
    version: ViewVersion | None
    code: str = ""
    message: str = ""
    #: the turn has begun and is to be done by several tasks (`divided_views`)
    division: Division | None = None


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """What a task needs beside its views."""

    lake: str
    waiting: Waiting
    keep_hours: int
    #: the driver's, with its secrets
    storage: StorageOptions = field(default_factory=StorageOptions)
    #: None: tables are scanned
    stores: StoreSettings | None = None
    #: into how many tasks a turn may be divided
    dividing: Dividing = ALONE
    #: of a query that is recomputed on a schedule
    bounds: Bounds = BOUNDS


def view_task(settings: ViewSettings) -> Callable[[Iterable[ViewWork]], Iterator[ViewOutcome]]:
    """A function for `RDD.mapPartitions`; a fault of a view is its outcome, never the task's end."""

    def run(works: Iterable[ViewWork]) -> Iterator[ViewOutcome]:
        use(settings.storage)
        for work in works:
            yield attempted(settings, work)

    return run


def attempted(settings: ViewSettings, work: ViewWork) -> ViewOutcome:
    """A view's turn, or its beginning where it is to be divided."""

    def turn() -> ViewVersion | Division:
        if is_scheduled(work.definition.sql):
            return recompute(settings.lake, work, settings.bounds)
        return follow(settings.lake, work, settings.waiting, settings.stores, settings.dividing)

    came = outcome_of(work, turn)
    if isinstance(came, ViewOutcome):
        return came
    if isinstance(came, Division):
        return ViewOutcome(work.definition.tenant, work.definition.name, None, division=came)
    return done(settings, work, came)


def done(settings: ViewSettings, work: ViewWork, version: ViewVersion) -> ViewOutcome:
    """Of a turn that came to a version."""
    name = (work.definition.tenant, work.definition.name)
    _clean(settings, view_table_id(*name), version)
    return ViewOutcome(*name, version)


def outcome_of(work: ViewWork, step: Callable[[], T]) -> T | ViewOutcome:
    """What a step of the view's turn gives; its fault is the view's outcome."""
    name = (work.definition.tenant, work.definition.name)
    try:
        return step()
    except ViewRefused as refused:
        return ViewOutcome(*name, None, refused.code, str(refused_here(work.definition.name, refused)))
    except MenuraError as stop:
        return ViewOutcome(*name, None, stop.code, str(stop))
    except (OSError, DeltaError) as failed:
        failure = storage_failed(failed)
        return ViewOutcome(*name, None, failure.code, str(failure))
    except Exception as unexpected:  # noqa: BLE001  (the view's top: one view never stops another)
        bug = _unexpected(unexpected)
        return ViewOutcome(*name, None, bug.code, str(bug))


def _clean(settings: ViewSettings, table: TableId, version: ViewVersion) -> None:
    """Old versions go; what keeps them from it is the next turn's."""
    after = (version.changelog_version, version.current_version)
    for kind, before, at in zip((CHANGELOG, CURRENT), version.opened, after, strict=True):
        folder = f"{table.folder(settings.lake)}/{kind}"
        if is_due(folder, before, at):
            try:
                clean(folder, settings.keep_hours)
            except (OSError, DeltaError) as failed:
                logger.warning("view not cleaned view=%s error=%s", table, type(failed).__name__)


def refused_here(name: str, refused: ViewRefused) -> ViewRefused:
    """The same where the view has been accepted: its tables are others than they were, or have other types."""
    return ViewRefused(
        refused.found,
        doing=f"following view {name} over its tables as they are in the lake",
        data="The view stays at its last version; tables and other views go on",
        remedy=refused.remedy or f"Give it a text that fits its tables: menura view create {name} --replace -f FILE",
    )


def _unexpected(failure: Exception) -> SinkError:
    """Names the class and the place alone: the text of an error may hold values."""
    package = str(Path(__file__).parents[1])
    ours = [frame for frame in extract_tb(failure.__traceback__) if frame.filename.startswith(package)]
    return ViewUnexpected(
        "computing a view",
        f"{type(failure).__name__} in {ours[-1].name}, line {ours[-1].lineno}",
        data="The view stays at its last version; tables and other views go on",
        remedy="Report this as a bug; the view is tried again by itself, more and more slowly",
    )


def storage_failed(failure: OSError | DeltaError) -> ViewStorageFailed:
    return ViewStorageFailed(
        "writing a view in the lake",
        f"{type(failure).__name__} ({reason_of(failure)})",
        data="The view stays at its last version; tables and other views go on",
        remedy="It is tried again by itself, more and more slowly; check the lake's storage",
    )
