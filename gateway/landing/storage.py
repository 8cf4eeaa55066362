"""Where landing lies: a local folder or any fsspec file system, as few operations as landing needs.

All paths are relative to the landing's root and are made by `menura.landing`. Calls block: the gateway makes
them in worker threads. What fails raises OSError; an entry whose outcome can't be told raises `OutcomeUnknown`.

Durable: what `put_if_absent` or `make_durable` returned for. A kill inside of `put_if_absent` may leave a
hidden temporary file in the log's folder, which nobody reads, as readers go by entry numbers.
"""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import fsspec
import pyarrow

from gateway.errors import LandingUnusable


class OutcomeUnknown(OSError):
    """A put was issued and neither confirmed nor refused: read back to learn."""


class Output(Protocol):
    """An open data file, for one thread at a time."""

    def write(self, data: bytes) -> int: ...
    def flush(self) -> None: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class Storage(Protocol):
    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none."""

    def put_if_absent(self, path: str, document: bytes) -> bool:
        """Write a file once, durably; False when it exists. OSError: it was not written."""

    def create(self, path: str) -> Output:
        """Open a new data file for writing."""

    def make_durable(self, paths: Iterable[str]) -> None:
        """After closing: returns when the files would survive a power cut."""

    def discard(self, path: str, output: Output | None) -> None:
        """Forget a data file that no entry names, closed or still open."""


def open_storage(url: str) -> Storage:
    """The storage of a landing URL: a path, file://..., or what fsspec knows."""
    parts = urlsplit(url)
    if not parts.scheme or parts.scheme == "file":
        return LocalStorage(Path(parts.path if parts.scheme else url))
    try:
        file_system, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as unusable:
        raise LandingUnusable(
            "opening the landing", f"scheme {parts.scheme}: {unusable}", remedy="Install the file system that it needs"
        ) from unusable
    return FsspecStorage(file_system, root)


class LocalStorage:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def put_if_absent(self, path: str, document: bytes) -> bool:
        target = self._root / path
        _make_folder(target.parent)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with draft.open("xb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, target)  # unlike a rename it never replaces
            except FileExistsError:
                return False
        finally:
            draft.unlink(missing_ok=True)
        try:
            _fsync(target.parent)
        except OSError as unsure:
            raise OutcomeUnknown(unsure.errno, f"{unsure.strerror} after linking the log entry") from unsure
        return True

    def create(self, path: str) -> Output:
        target = self._root / path
        _make_folder(target.parent)
        output: Output = pyarrow.OSFile(str(target), "wb")
        return output

    def make_durable(self, paths: Iterable[str]) -> None:
        folders: dict[Path, None] = {}
        for path in paths:
            target = self._root / path
            _fsync(target)
            folders[target.parent] = None
        for folder in folders:
            _fsync(folder)

    def discard(self, path: str, output: Output | None) -> None:
        if output is not None:
            with suppress(OSError):  # the disk that refused the rows refuses what is still in buffers
                output.close()
        (self._root / path).unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Create a folder and what is missing above it, each durable in its parent."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _fsync(folder.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FsspecStorage:
    """An object store: a file appears whole when it is closed, and is durable then.

    `put_if_absent` asks the store for a conditional put, which is what keeps several gateways apart. A store whose
    fsspec driver has none is asked first whether the entry exists: that is enough for one gateway alone.
    """

    def __init__(self, file_system: fsspec.AbstractFileSystem, root: str) -> None:
        self._file_system = file_system
        self._root = root.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def read(self, path: str) -> bytes | None:
        try:
            with _Errors("reading"):
                return bytes(self._file_system.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def put_if_absent(self, path: str, document: bytes) -> bool:
        with _Errors("looking for a log entry"):
            if self._file_system.exists(self._at(path)):
                return False
        try:
            with _Errors("putting a log entry"):
                self._file_system.pipe_file(self._at(path), document, mode="create")
        except FileExistsError:
            return False
        except OSError as unsure:
            raise OutcomeUnknown(unsure.errno, str(unsure)) from unsure
        return True

    def create(self, path: str) -> Output:
        with _Errors("opening a data file"):
            return _FsspecOutput(self._file_system.open(self._at(path), "wb"))

    def make_durable(self, paths: Iterable[str]) -> None:
        """Nothing to do: closing the file was the put."""

    def discard(self, path: str, output: Output | None) -> None:
        with suppress(OSError), _Errors("dropping a data file"):  # an orphan is harmless, and its store may be away
            if output is not None:
                output.close()  # no driver can be relied on to give up an open file without writing it
            if self._file_system.exists(self._at(path)):
                self._file_system.rm_file(self._at(path))


class _Errors:
    """Object stores raise what their clients raise: here it becomes OSError."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise OSError(f"{self._doing}: {type(error).__name__}") from error


class _FsspecOutput:
    """Counts what it wrote, since not every fsspec file can tell after its last block."""

    def __init__(self, file: fsspec.spec.AbstractBufferedFile) -> None:
        self._file = file
        self._written_bytes = 0
        self.closed = False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def write(self, data: bytes) -> int:
        with _Errors("writing a data file"):
            self._file.write(data)
        self._written_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Blocks are sent when they are full and at the end."""

    def tell(self) -> int:
        return self._written_bytes

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _Errors("closing a data file"):
                self._file.close()
