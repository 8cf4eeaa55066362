"""Any file system of fsspec's as a store: HDFS, and what else somebody installs.

Two writers that put the same path if absent may both believe that they won: one writer alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import fsspec
import pyarrow
from pyarrow import fs

from menura.stores.options import HADOOP_PREFIXES, StorageOptions
from menura.stores.store import MOST_BYTES, AppendedFile, Found, OutcomeUnknown, Output, StoreFailed, StoreUnusable


def open_file_system(url: str, options: StorageOptions) -> "FileSystemStore":
    """Raises `StoreUnusable`."""
    scheme = url.partition("://")[0]
    hadoop = {key: value for key, value in options.values().items() if key.startswith(HADOOP_PREFIXES)}
    settings: dict[str, Any] = {"extra_conf": hadoop} if hadoop and scheme == "hdfs" else {}
    try:
        file_system, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **settings)
    except (ImportError, OSError, ValueError) as unusable:
        raise StoreUnusable(f"scheme {scheme}: {unusable}") from unusable
    return FileSystemStore(file_system, root)


class FileSystemStore:
    def __init__(self, file_system: fsspec.AbstractFileSystem, root: str) -> None:
        self._file_system = file_system
        self._root = root.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        try:
            with _failures(f"reading {path}"), self._file_system.open(self._at(path), "rb") as file:
                return bytes(file.read(most_bytes))
        except FileNotFoundError:
            return None

    def find(self, path: str) -> Found | None:
        try:
            with _failures(f"looking for {path}"):
                return self._found(self._file_system.info(self._at(path)))
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Iterator[Found]:
        try:
            with _failures(f"listing {folder}"):
                found = self._file_system.find(self._at(folder), detail=True)
        except FileNotFoundError:
            return
        yield from map(self._found, found.values())

    def _found(self, facts: dict[str, Any]) -> Found:
        path = str(facts["name"]).removeprefix(self._root).lstrip("/")
        modified = next((facts[name] for name in ("mtime", "created", "last_modified") if facts.get(name)), 0)
        seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified)
        return Found(path, int(facts["size"] or 0), int(seconds * 1_000_000))

    def open(self, path: str) -> pyarrow.NativeFile:
        with _failures(f"opening {path}"):
            return fs.PyFileSystem(fs.FSSpecHandler(self._file_system)).open_input_file(self._at(path))

    def put_if_absent(self, path: str, document: bytes) -> bool:
        if self.find(path) is not None:
            return False
        try:
            with _failures(f"putting {path}"):
                self._make_folder(path)
                self._file_system.pipe_file(self._at(path), document, mode="create")
        except FileExistsError:
            return False
        except OSError as unsure:
            raise OutcomeUnknown(unsure.errno, str(unsure)) from unsure
        return True

    def put(self, path: str, document: bytes) -> None:
        with _failures(f"putting {path}"):
            self._make_folder(path)
            self._file_system.pipe_file(self._at(path), document)

    def create(self, path: str) -> Output:
        with _failures(f"opening {path}"):
            self._make_folder(path)
            return _Writer(path, self._file_system.open(self._at(path), "wb"))

    def _make_folder(self, path: str) -> None:
        self._file_system.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)

    def make_durable(self, paths: Iterable[str]) -> None:
        """Nothing that fsspec could do."""

    def discard(self, path: str, output: Output | None) -> None:
        with suppress(OSError):  # an orphan is harmless, and its store may be away
            if output is not None:
                output.close()  # no driver can be relied on to give up an open file without writing it
            self.delete([path])

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), _failures(f"deleting {path}"):
                self._file_system.rm_file(self._at(path))

    def drop_folder(self, folder: str) -> None:
        """Nothing to do: an empty one harms nobody."""


@contextmanager
def _failures(doing: str) -> Iterator[None]:
    """Drivers raise what their clients raise: here it becomes OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as failed:
        raise StoreFailed(type(failed).__name__, doing) from failed


class _Writer(AppendedFile):
    def __init__(self, path: str, file: fsspec.spec.AbstractBufferedFile) -> None:
        super().__init__()
        self._path = path
        self._file = file

    def append(self, data: bytes) -> None:
        with _failures(f"writing {self._path}"):
            self._file.write(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _failures(f"closing {self._path}"):
                self._file.close()
