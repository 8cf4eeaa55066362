"""What a store does, and how it fails."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow

#: of a document
MOST_BYTES = 1 << 30


class StoreUnusable(ValueError):
    """An address or an option with which nothing can be opened; says why, without secrets."""


class StoreFailed(OSError):
    """A store refused or gave no answer. `reason` is a word of its own for that, or a class of ours."""

    def __init__(self, reason: str, doing: str) -> None:
        super().__init__(5, f"{reason} {doing}")  # EIO, whatever it was: a number of the system's would mislead
        self.reason = reason


class OutcomeUnknown(OSError):
    """A put was issued and neither confirmed nor refused: read back to learn."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is there."""

    #: relative to the store's address
    path: str
    size_bytes: int
    #: by the store's clock
    modified_us: int


class Output(Protocol):
    """An open data file, for one thread at a time."""

    def write(self, data: bytes) -> int: ...
    def flush(self) -> None: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class AppendedFile(ABC):
    """An `Output` as pyarrow asks for one, which counts what it wrote: not every client can tell at its end."""

    def __init__(self) -> None:
        self._written_bytes = 0
        self.closed = False

    @abstractmethod
    def append(self, data: bytes) -> None:
        """All of it, behind what there is. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Once. Raises OSError."""

    def write(self, data: bytes) -> int:
        self.append(data)
        self._written_bytes += len(data)
        return len(data)

    def flush(self) -> None:  # noqa: B027  (no kind has more to do)
        """Parts are sent when they are full and at the end."""

    def tell(self) -> int:
        return self._written_bytes

    def writable(self) -> Literal[True]:
        return True

    def readable(self) -> Literal[False]:
        return False

    def seekable(self) -> Literal[False]:
        return False


class Store(Protocol):
    """Paths are relative to the store's address and have '/' between names. Calls block; what fails is an OSError."""

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        """The file, or as much of it from its beginning; None where there is none."""

    def find(self, path: str) -> Found | None:
        """Whether a file is there."""

    def list(self, folder: str) -> Iterator[Found]:
        """All files below a folder, in no order; none where there is no such folder."""

    def open(self, path: str) -> pyarrow.NativeFile:
        """A data file, for reading anywhere in it. FileNotFoundError where there is none."""

    def put_if_absent(self, path: str, document: bytes) -> bool:
        """Write a file once, durably; False when it exists.

        `OutcomeUnknown`: nobody can tell whether it was written. Another OSError: it was not.
        """

    def put(self, path: str, document: bytes) -> None:
        """Write a file durably, in place of another one. After an OSError either may be there."""

    def create(self, path: str) -> Output:
        """Open a new data file for writing."""

    def make_durable(self, paths: Iterable[str]) -> None:
        """After closing: returns when the files would survive a power cut."""

    def discard(self, path: str, output: Output | None) -> None:
        """Forget a data file that nothing names, closed or still open."""

    def delete(self, paths: Iterable[str]) -> None:
        """Take files away; those that are not there are no error."""

    def drop_folder(self, folder: str) -> None:
        """Forget a folder that holds nothing more, where the store has folders; one that holds something stays."""
