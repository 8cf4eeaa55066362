"""SQL statements are compiled once for all SQLite databases of a test process.

SQLAlchemy keeps what it has compiled by engine, and each test has a database of its own: a quarter of the CPU of the
control plane's tests went into compiling the same statements again. The dialects of these engines are alike, so what
one has compiled is good for each. Comes in: engines as they are made. Goes out: engines with one cache, of bounded
size. Nothing is durable.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.util import LRUCache

from controlplane_api import database

#: there are some hundred; a generated statement is another one each time
MOST_STATEMENTS = 4_000


class _OfAnyDialect(MutableMapping[Any, Any]):
    """SQLAlchemy's keys begin with the engine's dialect, an object."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Any, Any] = LRUCache(MOST_STATEMENTS)

    def __getitem__(self, key: Any) -> Any:
        return self._compiled[key[1:]]

    def __setitem__(self, key: Any, compiled: Any) -> None:
        self._compiled[key[1:]] = compiled

    def __delitem__(self, key: Any) -> None:
        del self._compiled[key[1:]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._compiled)

    def __len__(self) -> int:
        return len(self._compiled)


_shared = _OfAnyDialect()


def _create_engine(url: URL, **options: Any) -> Engine:
    if url.get_backend_name() == "sqlite":
        options["execution_options"] = {"compiled_cache": _shared}
    return create_engine(url, **options)


def share() -> None:
    """From now on, in this process."""
    database.create_engine = _create_engine  # type: ignore[assignment]
