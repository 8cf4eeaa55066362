"""S3, Google Cloud Storage and Azure as a store, by obstore: the object_store crate, which delta-rs has inside too.

A put is whole or not there, and a conditional one (`If-None-Match: *`) has one winner. The client tries again by itself
what failed by 5xx or a lost connection, a few times and for some seconds. A put if absent it sends once: sent again, it
may find its own document there, or be refused when it was written before, and what it says would not be what happened.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import obstore
import pyarrow
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore as Client
from obstore.store import from_url

from menura.stores.options import CLIENT_KEYS, MAX_RETRIES, PROVIDER_OF, RETRY_TIMEOUT_SECONDS, StorageOptions
from menura.stores.reasons import reason_of, word_of
from menura.stores.store import MOST_BYTES, AppendedFile, Found, OutcomeUnknown, Output, StoreFailed, StoreUnusable

if TYPE_CHECKING:
    from obstore import WritableFile

#: the reason where a store gives none
REFUSED = "REFUSED"
#: the least that S3 takes as a part of an upload
PART_BYTES = 5 << 20
#: files up to this size are read in one request
WHOLE_BYTES = 8 << 20
#: in one request to S3
DELETED_AT_ONCE = 1000
#: what stores call a file that is not there; any other word for a 404 says that more is missing
_NO_FILE = frozenset({"NoSuchKey", "BlobNotFound", "NoSuchVersion", "NoSuchUpload"})


def open_object_store(url: str, options: StorageOptions) -> "ObjectStore":
    """Raises `StoreUnusable`. Nothing is asked of the store yet."""
    provider = PROVIDER_OF[url.partition("://")[0]]
    given = options.values()
    of_client: dict[str, Any] = {key: _plain(value) for key, value in given.items() if key in CLIENT_KEYS}
    config = {key: value for key, value in given.items() if key.startswith(f"{provider}_")}
    if allowed := config.pop("aws_allow_http", None):
        of_client["allow_http"] = _plain(allowed)
    retries = _retries(given)
    try:
        client, once = (
            from_url(url, config=config, client_options=of_client, retry_config=each)  # type: ignore[call-overload]
            for each in (retries, {**retries, "max_retries": 0})
        )
    except (BaseError, ValueError) as refused:
        raise StoreUnusable(f"{url} can't be opened with these options: {_first_line(refused)}") from refused
    return ObjectStore(client, once)


def _plain(value: str) -> str | bool:
    return value == "true" if value in ("true", "false") else value


def _retries(given: Mapping[str, str]) -> dict[str, Any]:
    try:
        seconds = float(given["retry_timeout"].removesuffix("s")) if "retry_timeout" in given else RETRY_TIMEOUT_SECONDS
        most = int(given.get("max_retries", MAX_RETRIES))
    except ValueError as wrong:
        raise StoreUnusable("retry_timeout is a number of seconds, max_retries a number") from wrong
    return {"max_retries": most, "retry_timeout": timedelta(seconds=seconds)}


class ObjectStore:
    def __init__(self, client: Client, once: Client) -> None:
        """`once` tries nothing again."""
        self._client, self._once = client, once

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        try:
            with _failures(f"reading {path}"):
                got = obstore.get(self._client, path)
                if got.meta["size"] > most_bytes:
                    return bytes(obstore.get_range(self._client, path, start=0, length=most_bytes))
                return bytes(got.bytes())
        except FileNotFoundError:
            return None

    def find(self, path: str) -> Found | None:
        try:
            with _failures(f"looking for {path}"):
                return _found(path, obstore.head(self._client, path))
        except FileNotFoundError:
            pass
        except StoreFailed as failed:
            if failed.reason != REFUSED:
                raise
        try:  # an answer to HEAD can't say whether its bucket is there, or why it is refused
            with _failures(f"looking for {path}"):
                return _found(path, obstore.get(self._client, path).meta)
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Iterator[Found]:
        with _failures(f"listing {folder}"):
            for page in obstore.list(self._client, prefix=folder.rstrip("/")):
                yield from (_found(meta["path"], meta) for meta in page)

    def open(self, path: str) -> pyarrow.NativeFile:
        with _failures(f"opening {path}"):
            got = obstore.get(self._client, path)
            size_bytes = got.meta["size"]
            if size_bytes <= WHOLE_BYTES:
                return pyarrow.BufferReader(bytes(got.bytes()))
            return pyarrow.PythonFile(_Reader(self._client, path, size_bytes), "r")

    def put_if_absent(self, path: str, document: bytes) -> bool:
        try:
            with _failures(f"putting {path}"):
                obstore.put(self._once, path, document, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        except FileNotFoundError as missing:
            raise StoreFailed("NotFound", f"putting {path}") from missing
        except StoreFailed as failed:
            if failed.reason in _NOT_WRITTEN:
                raise
            raise OutcomeUnknown(failed.errno, failed.strerror) from failed
        return True

    def put(self, path: str, document: bytes) -> None:
        with _failures(f"putting {path}"):
            obstore.put(self._client, path, document)

    def create(self, path: str) -> Output:
        with _failures(f"opening {path}"):
            return _Writer(path, obstore.open_writer(self._client, path, buffer_size=PART_BYTES, max_concurrency=2))

    def make_durable(self, paths: Iterable[str]) -> None:
        """Nothing to do: closing the file was the put."""

    def discard(self, path: str, output: Output | None) -> None:
        if isinstance(output, _Writer):
            output.drop()
        with suppress(OSError):  # an orphan is harmless, and its store may be away
            self.delete([path])

    def delete(self, paths: Iterable[str]) -> None:
        gone = list(paths)
        for first in range(0, len(gone), DELETED_AT_ONCE):
            self._delete(gone[first : first + DELETED_AT_ONCE])

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            with _failures("deleting files"):
                obstore.delete(self._client, paths)
        except FileNotFoundError:  # of a store that takes one at a time: it has left those behind it
            for path in paths:
                with suppress(FileNotFoundError), _failures("deleting files"):
                    obstore.delete(self._client, path)

    def drop_folder(self, folder: str) -> None:
        """Nothing to do: a folder is a part of names."""


#: a store that says so has written nothing
_NOT_WRITTEN = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "NoSuchBucket", "ContainerNotFound"}
    | {"AuthenticationFailed", "AuthorizationFailure", REFUSED}
)


@contextmanager
def _failures(doing: str) -> Iterator[None]:
    """What the client raises becomes an OSError, without the store's own text."""
    try:
        yield
    except AlreadyExistsError as exists:
        raise FileExistsError(17, f"{doing}: it is there already") from exists
    except FileNotFoundError as missing:
        word = word_of(missing)
        if word and word not in _NO_FILE:
            raise StoreFailed(word, doing) from missing
        raise FileNotFoundError(2, f"{doing}: it is not there") from missing
    except (PermissionDeniedError, UnauthenticatedError) as refused:
        raise StoreFailed(word_of(refused) or REFUSED, doing) from refused
    except (BaseError, OSError, ValueError) as failed:
        if isinstance(failed, StoreFailed):
            raise
        raise StoreFailed(reason_of(failed), doing) from failed


def _first_line(refused: BaseException) -> str:
    return str(refused).partition("\n")[0]


def _found(path: str, meta: Mapping[str, Any]) -> Found:
    return Found(path, int(meta["size"]), int(meta["last_modified"].timestamp() * 1_000_000))


class _Reader:
    """A large file, by ranges; `pyarrow.PythonFile` asks of one thread at a time."""

    def __init__(self, client: Client, path: str, size_bytes: int) -> None:
        self._client, self._path, self._size_bytes = client, path, size_bytes
        self._at = 0
        self.closed = False

    def readable(self) -> Literal[True]:
        return True

    def seekable(self) -> Literal[True]:
        return True

    def writable(self) -> Literal[False]:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size_bytes - self._at)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        with _failures(f"reading {self._path}"):
            data = bytes(obstore.get_range(self._client, self._path, start=self._at, length=wanted))
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True


class _Writer(AppendedFile):
    """A file that appears when it is closed; dropped, it never does."""

    def __init__(self, path: str, file: "WritableFile") -> None:
        super().__init__()
        self._path = path
        self._file: WritableFile | None = file

    def append(self, data: bytes) -> None:
        if self._file is None:
            raise StoreFailed("DROPPED", f"writing {self._path}")
        with _failures(f"writing {self._path}"):
            self._file.write(data)

    def close(self) -> None:
        file, self._file = self._file, None
        self.closed = True
        if file is not None:
            with _failures(f"closing {self._path}"):
                file.close()

    def drop(self) -> None:
        self._file = None
        self.closed = True
