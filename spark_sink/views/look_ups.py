"""How rows of a view's tables are looked up: in stores of this machine, or by scans of the lake.

Comes in: the plan, its inputs at a boundary, and the folder of the view's stores. Goes out: rows by keys; after the
view's commit, stores at the inputs' versions. A table that looks another one up, or is looked up, has a store from so
many rows on. After a kill it is behind, and takes over what changed since; where it can't be used, rows are scanned for
and it is made again after the commit. A fault of a store is logged and never the view's.
"""

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError
from menura.views.definition import InputName
from menura.views.plan import Input, Plan

from spark_sink.errors import ViewNotComputed
from spark_sink.views.closure import LookUp, key_columns, parent_columns
from spark_sink.views.engine import Engine
from spark_sink.views.inputs import Irregular, Mark, OpenInput
from spark_sink.views.store import FORMAT, MANIFEST, Store, StoreFull, StoreShape, StoreUnusable
from spark_sink.views.store_folders import StoreSettings, ViewFolder, digest, remove_unused, room_bytes, stores_of

#: between two attempts to make a store that could not be made
AGAIN_SECONDS = 3600.0
_FAULTS = (StoreUnusable, StoreFull, Irregular, ViewNotComputed, DeltaError, OSError, pa.ArrowException)

logger = logging.getLogger("menura.sink")


class LookUps:
    """Of one turn of a view. `shapes`: of the tables that have a store, by alias; none without a `folder`."""

    def __init__(
        self,
        sql: Engine,
        plan: Plan,
        inputs: Mapping[InputName, OpenInput],
        folder: ViewFolder | None,
        shapes: Mapping[str, StoreShape],
    ) -> None:
        self._sql = sql
        self._plan = plan
        self._inputs = inputs
        self._folder = folder
        self._shapes = shapes
        self._stores: dict[str, Store | None] = {}

    def since(self, before: Mapping[InputName, Mark]) -> LookUp:
        """Rows for what changed since these marks: of keys that did, as they were then or later."""

        def look_up(each: Input, keys: pa.Table, on: Sequence[str]) -> pa.Table:
            store = self._usable(each, before[each.name]) if keys.num_rows else None
            found = None
            if store is not None:
                try:
                    found = store.with_keys(self._sql, keys, on)
                except _FAULTS as fault:
                    self._give_up(each, fault)
            return self._inputs[each.name].with_keys(keys, each.columns, on) if found is None else found

        return look_up

    def keep_up(self) -> None:
        """Bring the stores to the inputs' versions, make those that are not there, and remove others."""
        if self._folder is None:
            return
        wanted = [each for each in self._plan.inputs if each.alias in self._shapes]
        names = {digest(each.alias) for each in wanted}
        try:
            remove_unused(self._folder.settings)
            for path in self._folder.path.iterdir():
                if path.is_dir() and path.name not in names:
                    shutil.rmtree(path)
        except OSError as failed:
            logger.warning("stores of views not removed error=%s: %s", type(failed).__name__, failed.strerror)
        for each in wanted:
            try:
                store = self._opened(each)
                if store is not None:
                    self._advance(each, store)
            except _FAULTS as fault:
                self._give_up(each, fault)
                store = None
            if store is None or store.is_to_be_made_again:
                self._make(each)

    def _usable(self, each: Input, before: Mark) -> Store | None:
        """One that is not older than the view."""
        try:
            store = self._opened(each)
            if store is not None and store.mark.gsn < before.gsn:
                self._advance(each, store)
        except _FAULTS as fault:
            self._give_up(each, fault)
            return None
        return store

    def _advance(self, each: Input, store: Store) -> None:
        found = self._inputs[each.name]
        if store.mark != found.mark:
            store.advance(self._sql, found.changes(store.mark, each.columns), found.mark)

    def _opened(self, each: Input) -> Store | None:
        """None: there is none that can be used. Raises what is wrong with it, once."""
        if each.alias not in self._stores:
            self._stores[each.alias] = None
            folder = self._folder
            if folder is not None and each.alias in self._shapes and (self._path(each) / MANIFEST).exists():
                store = Store.open(self._path(each), self._shapes[each.alias], folder.settings.most_bytes)
                now = self._inputs[each.name].mark
                if store.mark.state != now.state or store.mark.gsn > now.gsn:
                    raise StoreUnusable("the table was dumped or repaired, or is an older copy")
                self._stores[each.alias] = store
        return self._stores[each.alias]

    def _give_up(self, each: Input, fault: Exception) -> None:
        self._stores[each.alias] = None
        text = str(fault) if isinstance(fault, StoreUnusable | StoreFull | Irregular) else ""
        logger.warning(
            "store of a view not usable table=%s error=%s: %s",
            self._inputs[each.name].at.table,
            type(fault).__name__,
            text,
        )
        shutil.rmtree(self._path(each), ignore_errors=True)

    def _make(self, each: Input) -> None:
        found, path, folder = self._inputs[each.name], self._path(each), self._folder
        assert folder is not None
        failed = path.with_suffix(".failed")
        if failed.exists() and 0 <= time.time() - failed.stat().st_mtime < AGAIN_SECONDS:
            return
        shutil.rmtree(path, ignore_errors=True)
        try:
            rows = found.all_rows(each.columns)
            shape = self._shapes[each.alias]
            self._stores[each.alias] = Store.build(
                self._sql, path, shape, rows, found.mark, room_bytes(folder.settings)
            )
            failed.unlink(missing_ok=True)
        except _FAULTS as fault:
            self._give_up(each, fault)
            with suppress(OSError):  # a disk that takes nothing is said above, and asked again at the next turn
                failed.touch()

    def _path(self, each: Input) -> Path:
        assert self._folder is not None
        return self._folder.path / digest(each.alias)


@contextmanager
def look_ups(
    sql: Engine,
    lake: str,
    view: tuple[str, str],
    plan: Plan,
    inputs: Mapping[InputName, OpenInput],
    settings: StoreSettings | None,
) -> Iterator[LookUps]:
    """`view`: its tenant and name; without `settings` tables are scanned."""
    shapes = _shapes(plan, inputs, settings) if settings is not None else {}
    with stores_of(settings, lake, view) if settings is not None and shapes else nullcontext() as folder:
        yield LookUps(sql, plan, inputs, folder, shapes if folder is not None else {})


def _shapes(plan: Plan, inputs: Mapping[InputName, OpenInput], settings: StoreSettings) -> dict[str, StoreShape]:
    """By alias, of the tables that have a store."""
    found = {}
    for each in plan.inputs:
        at, children = inputs[each.name], plan.children(each.alias)
        sought = [*map(parent_columns, children), *([key_columns(each)] if each.parent else [])]
        if sought and at.key and at.merged_rows >= settings.least_rows:
            shape = _shape(at, each.columns, sought)
            if not any(pa.types.is_floating(field.type) for field in shape.sought):  # there is more than one zero
                found[each.alias] = shape
    return found


def _shape(at: OpenInput, names: Sequence[str], sought: Sequence[Sequence[str]]) -> StoreShape:
    columns = pa.schema([at.schema.field(name) for name in names])
    indexes = tuple(dict.fromkeys(tuple(on) for on in sought if list(on) != at.key))
    facts = (
        FORMAT,
        duckdb.__version__,
        pa.__version__,
        at.identity,
        [str(field) for field in columns],
        at.key,
        indexes,
    )
    return StoreShape(columns, tuple(at.key), indexes, digest(repr(facts)))
