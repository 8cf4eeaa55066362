"""Which tables of a tenant have indexes in a folder.

Comes in: the folder. Goes out: tables, in their order. Nothing is changed. An index of before `TABLE_FILE` has its
table's name in its folders' names.
"""

import json
from pathlib import Path

from spark_sink.errors import SearchIndexFailed
from spark_sink.reading_at import folder_path
from spark_sink.search.index import TABLE_FILE, TABLE_FORMAT, failures
from spark_sink.work import TableId, name_of_segment


def indexed_tables(folder: Path, tenant: str) -> list[TableId]:
    """Also of indexes that were begun and not completed yet. Raises `SearchIndexFailed`."""
    with failures(folder):
        homes = (home for source in _below(folder / tenant) for database in _below(source) for home in _below(database))
        return sorted(_table(tenant, home) for home in homes)


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
