"""Which tables of a tenant have indexes.

Comes in: where indexes are. Goes out: tables, in their order. Nothing is changed. In a folder an index of before
`TABLE_FILE` has its table's name in its folders' names.
"""

import json
from pathlib import Path

from spark_sink.errors import SearchIndexFailed
from spark_sink.reading_at import folder_path
from spark_sink.search.index import TABLE_FILE, TABLE_FORMAT, failures
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.indexes import tables_of, unanswering
from spark_sink.work import TableId, name_of_segment


def indexed_tables(where: Path | Cluster, tenant: str) -> list[TableId]:
    """Also of indexes that were begun and not completed yet. Raises `SearchIndexFailed`."""
    if isinstance(where, Cluster):
        return tables_of(where, tenant)
    with failures(where):
        homes = (home for source in _below(where / tenant) for database in _below(source) for home in _below(database))
        return sorted(_table(tenant, home) for home in homes)


def unready(where: Path | Cluster) -> list[str]:
    """Why no index can be read there now."""
    if isinstance(where, Cluster):
        return unanswering(where)
    try:
        next(where.iterdir(), None)
    except OSError as failure:
        return [f"the folder of indexes can't be read: {failure.strerror}"]
    return []


def _below(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _table(tenant: str, home: Path) -> TableId:
    *_, source, database, table = home.parts
    try:
        held = json.loads((home / TABLE_FILE).read_bytes())
        named = TableId(held["tenant"], held["source"], held["database"], held["table"])
        if held["format"] == TABLE_FORMAT and folder_path(named) == f"{tenant}/{source}/{database}/{table}":
            return named
    except FileNotFoundError:
        return TableId(tenant, source, name_of_segment(database), name_of_segment(table))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise SearchIndexFailed(
        "listing search indexes",
        f"{home / TABLE_FILE}: it is not the name of that folder's table",
        remedy="Remove that folder; the next `menura search index` builds it anew",
    )
