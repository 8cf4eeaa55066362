"""A folder of this machine as a store."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow

from menura.stores.store import MOST_BYTES, Found, OutcomeUnknown, Output


class LocalStore:
    """A document is written under a hidden name, made durable, and then linked or renamed to its own."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        try:
            with (self._root / path).open("rb") as file:
                return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))  # it takes memory for all it asks
        except FileNotFoundError:
            return None

    def find(self, path: str) -> Found | None:
        try:
            status = (self._root / path).stat()
        except FileNotFoundError:
            return None
        return Found(path, status.st_size, status.st_mtime_ns // 1000)

    def list(self, folder: str) -> Iterator[Found]:
        for parent, _, names in os.walk(self._root / folder, onerror=_raise_unless_absent):
            for name in names:
                path = Path(parent, name).relative_to(self._root).as_posix()
                if not name.startswith(".") and (found := self.find(path)) is not None:
                    yield found

    def open(self, path: str) -> pyarrow.NativeFile:
        return pyarrow.OSFile(str(self._root / path), "rb")

    def put_if_absent(self, path: str, document: bytes) -> bool:
        target = self._root / path
        draft = _draft(target, document)
        try:
            os.link(draft, target)  # unlike a rename it never replaces
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        try:
            _fsync(target.parent)
        except OSError as unsure:
            raise OutcomeUnknown(unsure.errno, f"{unsure.strerror} after linking the file") from unsure
        return True

    def put(self, path: str, document: bytes) -> None:
        target = self._root / path
        draft = _draft(target, document)
        try:
            draft.rename(target)
        finally:
            draft.unlink(missing_ok=True)
        _fsync(target.parent)

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
        self.delete([path])

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def drop_folder(self, folder: str) -> None:
        with suppress(OSError):  # it is not empty, or not there
            (self._root / folder).rmdir()


def _raise_unless_absent(failed: OSError) -> None:
    """A folder that can't be read is not one without files."""
    if not isinstance(failed, FileNotFoundError | NotADirectoryError):
        raise failed


def _draft(target: Path, document: bytes) -> Path:
    """The document beside its place, durable but for its name."""
    _make_folder(target.parent)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


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
