"""The lake as whoever follows it finds it: whether it has what is wanted, which tables wait there, why it fails.

Comes in: a lake's address, tables. Goes out: errors with what to name instead, words for people. Nothing is changed.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import pyarrow as pa
from deltalake.exceptions import DeltaError
from menura.stores.reasons import reason_of

from spark_sink.errors import LakeStorageFailed, TableNotInLake
from spark_sink.export.feed import Feed
from spark_sink.lake.records import Records
from spark_sink.reading import list_tables
from spark_sink.work import TableId


def check_tables(lake: str, tables: Iterable[TableId], groups: Iterable[tuple[str, ...]] = ()) -> None:
    """`groups`: begin with a tenant and a source, of which the lake must have a table.

    Raises `TableNotInLake`; OSError and DeltaError of the store.
    """
    known = set(list_tables(lake))
    for table in tables:
        if table not in known:
            raise TableNotInLake("exporting changes", f"{table} has no changelog in {lake}", remedy=_like(table, known))
    sources = {(each.tenant, each.source) for each in known}
    for group in groups:
        if group[:2] not in sources:
            raise TableNotInLake(
                "exporting changes",
                f"{lake} has no table of {'/'.join(group[:2])}",
                remedy=_like(TableId(group[0], group[1], "", ""), known),
            )


def _like(table: TableId, known: Collection[TableId]) -> str:
    """What to name instead."""
    paths = [each.default_folder for each in sorted(known) if each.tenant == table.tenant]
    found = get_close_matches(table.default_folder, paths, 3, 0) or ["no table of this tenant yet"]
    return f"Name a table of the lake; it has {', '.join(found)}" + (", and others" if len(paths) > len(found) else "")


def waiting(feed: Feed) -> dict[TableId, str]:
    """What to say of tables that have stopped in the lake."""
    stops = (stop for stop in Records(feed.lake).stopped_tables().values() if feed.wants(stop.table))
    return {stop.table: f"{stop.table} has stopped in the lake with {stop.code}: its changes wait" for stop in stops}


@contextmanager
def store_failures() -> Iterator[None]:
    """Of the lake's; Arrow tells of a file that is removed in the midst of a scan."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, DeltaError, pa.ArrowException) as failure:
        raise LakeStorageFailed(
            "exporting changes",
            f"a store failed: {reason_of(failure) if isinstance(failure, OSError) else type(failure).__name__}",
            data="The position stays where it was; what is not out comes with the next start",
            remedy="Check the lake's storage, then start it again",
        ) from failure
