"""A table's rows as a view reads them, on this machine's disk: rows by key, at the cost of these rows.

Comes in: all rows of an input once, then what changed of it. Goes out: the rows that have some keys. A store holds
nothing that the lake lacks: one that is lost, damaged, of another definition or another copy is made again.

A store is a folder of runs. The first has all rows, each later one the keys that changed: a row with `_GONE` where the
key has none any more. The newest run that has a key is right. A run's files are Arrow's, mapped into memory and never
changed: the rows in the order of their place, and of each list of columns that is looked up the values' places with
those of their rows. A place is the key itself where it is an integer, else a hash: what is found is compared as it is.
`manifest` names the runs and how far the input was, behind the CRC-32 of that; it is replaced last, so a kill leaves
the former one:

    3632233996 {"format": 1, "identity": "9f...", "mark": [7, 1, 3, 2], "next": 2,
                "runs": [{"number": 1, "rows": 20, "files": [[4096, 907060870], [2048, 12345]]}]}

Files are [bytes, CRC-32]. A process compares them when it first opens a file, in 0.3 CPU s a GiB.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from menura.views.terms import quoted, type_word

from spark_sink.landed.lake_schema import format_of
from spark_sink.views.engine import Engine
from spark_sink.views.inputs import Mark, Slice, first_of_each, having_keys
from spark_sink.views.queries import same_key

FORMAT = 1
MANIFEST = "manifest"
_PLACE, _SOUGHT, _GONE = "_menura_place", "_menura_sought", "_menura_gone"
#: a run is joined with the one before while that has at most so many times its rows
JOINED_TIMES = 2
#: runs of changes with more rows, and with more than this part of the first one's, have the store made again
CHANGED_ROWS, CHANGED_PART = 100_000, 1 / 4
#: rows that one look-up may come to; beyond, a scan is no dearer
MOST_FOUND = 1_000_000


class StoreUnusable(Exception):
    """It has to be made again from the lake; says why."""


class StoreFull(Exception):
    """There is no room for it."""


@dataclass(frozen=True, slots=True)
class StoreShape:
    """What a store holds of its table."""

    columns: pa.Schema
    key: tuple[str, ...]
    #: lists of columns, beside the key, that look another table up
    indexes: tuple[tuple[str, ...], ...]
    #: of which table, in which copy of the lake, under which definition
    identity: str

    @property
    def sought(self) -> list[pa.Field]:
        """The columns that rows are looked up by."""
        return [self.columns.field(name) for on in (self.key, *self.indexes) for name in on]

    @property
    def rows(self) -> pa.Schema:
        return pa.schema([pa.field(_PLACE, pa.int64()), pa.field(_GONE, pa.bool_()), *self.columns])


_INDEX = pa.schema([pa.field(_SOUGHT, pa.int64()), pa.field(_PLACE, pa.int64())])


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    rows: int
    #: bytes and CRC-32: of the rows, then of each index
    files: tuple[tuple[int, int], ...]


class Store:
    """Opened; of one process at a time. `most_bytes`: of a run's files."""

    def __init__(
        self, folder: Path, shape: StoreShape, mark: Mark, most_bytes: int, runs: tuple[_Run, ...] = (), number: int = 0
    ) -> None:
        self._folder = folder
        self._shape = shape
        self.mark = mark
        self._most_bytes = most_bytes
        self._runs = runs
        #: of the next run
        self._number = number

    @classmethod
    def open(cls, folder: Path, shape: StoreShape, most_bytes: int) -> "Store":
        """Raises `StoreUnusable` where there is none of this shape; OSError."""
        mark, number, runs = _read_manifest(folder / MANIFEST, shape.identity)
        return cls(folder, shape, mark, most_bytes, runs, number)

    @classmethod
    def build(
        cls, sql: Engine, folder: Path, shape: StoreShape, rows: pa.RecordBatchReader, mark: Mark, most_bytes: int
    ) -> "Store":
        """Of all rows; in place of what is there. Raises `StoreFull`, `ViewNotComputed`, OSError, ArrowException."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        found = cls(folder, shape, mark, most_bytes)
        sql.put("_store_rows", rows)
        place = _place([shape.columns.field(name) for name in shape.key])
        columns = ", ".join(map(quoted, shape.columns.names))
        query = f"SELECT {place}, FALSE, {columns} FROM _store_rows ORDER BY 1"  # noqa: S608  (quoted names)
        found._keep((found._write(sql, query),), mark)
        return found

    def with_keys(self, sql: Engine, keys: pa.Table, on: Sequence[str]) -> pa.Table | None:
        """The rows whose columns `on` have one of these keys, which are called likewise; None: they are very many.

        Null is no key. Raises `StoreUnusable`, OSError, ArrowException.
        """
        fields = [self._shape.columns.field(name) for name in on]
        sql.put("_store_keys", keys)
        has_key = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in on)
        query = f"SELECT DISTINCT {_place(fields)} AS p FROM _store_keys WHERE {has_key} ORDER BY p"  # noqa: S608
        places = sql.table(query)["p"].combine_chunks()
        if tuple(on) != self._shape.key:
            at = 1 + self._shape.indexes.index(tuple(on))
            hits = _found((self._blocks(run, at) for run in self._runs), _SOUGHT, places)
            places = None if hits is None else _sorted(hits, _PLACE)
        newest_first = (self._blocks(run, 0) for run in reversed(self._runs))
        candidates = None if places is None else _found(newest_first, _PLACE, places)
        if candidates is None:
            return None
        rows = pa.Table.from_batches(candidates, self._shape.rows)
        if len(self._runs) > 1:
            rows = first_of_each(rows, self._shape.key)
        rows = rows.filter(pc.invert(rows[_GONE])).select(self._shape.columns.names)
        return having_keys(rows, keys, on)

    @property
    def is_to_be_made_again(self) -> bool:
        """Whether it has so many changes that this is cheaper than to keep them."""
        first, *others = [run.rows for run in self._runs]
        return sum(others) > max(CHANGED_ROWS, first * CHANGED_PART)

    def advance(self, sql: Engine, change: Slice, mark: Mark) -> None:
        """Take over what changed. Raises `StoreUnusable`, `StoreFull`, `ViewNotComputed`, OSError, ArrowException."""
        runs = self._runs
        if change.keys.num_rows:
            runs = (*runs, self._write(sql, self._change_query(sql, change)))
        while len(runs) > 2 and runs[-2].rows <= JOINED_TIMES * runs[-1].rows:
            runs = (*runs[:-2], self._joined(sql, *runs[-2:]))
        self._keep(runs, mark)

    def _change_query(self, sql: Engine, change: Slice) -> str:
        names, key = self._shape.columns.names, self._shape.key
        sql.put("_store_changed", change.keys)
        sql.put("_store_new", change.new)
        place = _place([self._shape.columns.field(name) for name in key])
        left = ", ".join(f"k.{quoted(name)}" if name in key else f"NULL AS {quoted(name)}" for name in names)
        chosen = ", ".join(map(quoted, names))
        gone = f"SELECT {left} FROM _store_changed k ANTI JOIN _store_new n ON {same_key('k', 'n', key)}"  # noqa: S608
        return (
            f"SELECT {place}, FALSE, {chosen} FROM _store_new"  # noqa: S608  (quoted names)
            f" UNION ALL SELECT {place}, TRUE, {chosen} FROM ({gone}) ORDER BY 1"
        )

    def _joined(self, sql: Engine, older: _Run, newer: _Run) -> _Run:
        for name, run in (("_store_older", older), ("_store_newer", newer)):
            sql.put(name, pa.Table.from_batches(self._blocks(run, 0), self._shape.rows))
        on = same_key("o", "n", self._shape.key)
        others = f"SELECT o.* FROM _store_older o ANTI JOIN _store_newer n ON {on}"  # noqa: S608  (quoted names)
        return self._write(sql, f"SELECT * FROM _store_newer UNION ALL {others} ORDER BY 1")  # noqa: S608

    def _write(self, sql: Engine, query: str) -> _Run:
        """A run of rows in `StoreShape.rows`, and its indexes."""
        number, self._number = self._number, self._number + 1
        room = _Room(self._most_bytes)
        count = _write(self._path(number, 0), sql.reader(query), self._shape.rows, room)
        run = _Run(number, count, (_facts(self._path(number, 0)),))
        for at, on in enumerate(self._shape.indexes, start=1):
            sql.put("_store_run", pa.Table.from_batches(self._blocks(run, 0), self._shape.rows))
            has_key = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in on)
            sought = _place([self._shape.columns.field(name) for name in on])
            indexed = f"SELECT {sought}, {_PLACE} FROM _store_run WHERE NOT {_GONE} AND {has_key} ORDER BY 1"  # noqa: S608
            _write(self._path(number, at), sql.reader(indexed), _INDEX, room)
            run = _Run(number, count, (*run.files, _facts(self._path(number, at))))
        return run

    def _keep(self, runs: tuple[_Run, ...], mark: Mark) -> None:
        """From now on it is these runs."""
        said = {
            "format": FORMAT,
            "identity": self._shape.identity,
            "mark": astuple(mark),
            "next": self._number,
            "runs": [asdict(run) for run in runs],
        }
        written, text = self._folder / f"{MANIFEST}.new", json.dumps(said)
        written.write_text(f"{zlib.crc32(text.encode())} {text}")
        written.replace(self._folder / MANIFEST)
        self.mark, self._runs = mark, runs
        self._remove_others()

    def _remove_others(self) -> None:
        runs = self._runs
        named = {MANIFEST, *(self._path(run.number, at).name for run in runs for at in range(len(run.files)))}
        for path in self._folder.iterdir():
            if path.name not in named:
                path.unlink()

    def _path(self, number: int, at: int) -> Path:
        return self._folder / f"{number}-{at}.arrow"

    def _blocks(self, run: _Run, at: int) -> list[pa.RecordBatch]:
        """Of a file, mapped into memory; a damaged one is not, as Arrow follows its offsets wherever they lead."""
        path = self._path(run.number, at)
        try:
            found = _facts(path)
        except FileNotFoundError as lost:
            raise StoreUnusable(f"{path.name} is lost") from lost
        if found != run.files[at]:
            raise StoreUnusable(f"{path.name} has other bytes than were written")
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(place) for place in range(reader.num_record_batches)]


class _Room:
    """What a run may still take of the disk."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def take(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise StoreFull("it would be larger than the room for it")


def _read_manifest(path: Path, identity: str) -> tuple[Mark, int, tuple[_Run, ...]]:
    try:
        checksum, _, text = path.read_bytes().partition(b" ")
        if int(checksum) != zlib.crc32(text):
            raise StoreUnusable("its manifest has other bytes than were written")
        said: Any = json.loads(text)
        if said["format"] != FORMAT or said["identity"] != identity:
            raise StoreUnusable("it is of another table, text or version")
        runs = tuple(
            _Run(int(run["number"]), int(run["rows"]), tuple((int(size), int(crc)) for size, crc in run["files"]))
            for run in said["runs"]
        )
        return Mark(*map(int, said["mark"])), int(said["next"]), runs
    except FileNotFoundError as absent:
        raise StoreUnusable("there is none") from absent
    except (ValueError, TypeError, KeyError, AttributeError) as garbled:
        raise StoreUnusable("its manifest can't be read") from garbled


def _facts(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32; read once by a process."""
    found = path.stat()
    return found.st_size, crc32_of(str(path), found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4096)
def crc32_of(path: str, _inode: int, _modified_ns: int, size: int) -> int:
    """Of a file that is as these say."""
    return zlib.crc32(pa.memory_map(path).read_buffer()) if size else 0


def _write(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, room: _Room) -> int:
    """Gives how many rows it has."""
    count = 0
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, schema) as writer:
        for batch in batches:
            room.take(batch.nbytes)
            writer.write_table(pa.table(batch.columns, names=schema.names).cast(schema))
            count += batch.num_rows
    return count


def _place(fields: Sequence[pa.Field]) -> str:
    """Of values of these columns, whatever type they come in; a value that is none of theirs has any place or none."""
    (first, *others) = fields
    if not others and pa.types.is_integer(first.type):
        place = f"CAST({quoted(first.name)} AS BIGINT)"
    else:
        values = ", ".join(f"TRY_CAST({quoted(each.name)} AS {type_word(format_of(each.type))})" for each in fields)
        place = f"CAST(hash({values}) >> 1 AS BIGINT)"
    return f"coalesce({place}, 0)"


def _sorted(batches: Iterable[pa.RecordBatch], name: str) -> pa.Array:
    return (
        pa.Table.from_batches(list(batches), _INDEX).group_by(name).aggregate([]).sort_by(name)[name].combine_chunks()
    )


def _found(runs: Iterable[Iterable[pa.RecordBatch]], by: str, wanted: pa.Array) -> list[pa.RecordBatch] | None:
    """Rows of blocks that are in the order of `by`, by its values, which are in order too; None: they are too many."""
    found: list[pa.RecordBatch] = []
    count = 0
    for block in (block for run in runs for block in run if block.num_rows):
        values = block.column(by)
        begins = pc.search_sorted(wanted, values[0], side="left").as_py()
        ends = pc.search_sorted(wanted, values[-1], side="right").as_py()
        if begins == ends:
            continue
        here = wanted.slice(begins, ends - begins)
        firsts, lasts = (pc.search_sorted(values, here, side=side).to_pylist() for side in ("left", "right"))
        count += sum(lasts) - sum(firsts)
        if count > MOST_FOUND:
            return None
        places = [place for first, last in zip(firsts, lasts, strict=True) for place in range(first, last)]
        if places:
            found.append(block.take(pa.array(places, pa.int64())))
    return found
