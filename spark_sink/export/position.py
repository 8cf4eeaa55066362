"""How far an export is: of each source the cut, of each table the number up to which its changes are out.

As a document, which is read again at the next start::

    {"format": 1, "sources": [{"tenant": "acme", "source": "shop", "cut": 41, "tables": [
      {"database": "shop", "table": "orders", "gsn": 900, "chunk_cut": 12, "version": 37, "id": "5b0c..."}]}]}

`version` and `id` are the changelog's in Delta; `chunk_cut` is the last cut with rows of a dump.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_sink.errors import ExportPositionInvalid
from spark_sink.work import TableId

#: what to do where a position is of no use any more
ANEW = (
    "Begin anew, in another folder or with another position file, a pipe under another name: --from state, in a file"
    " from = 'state', gives rows as they are, then changes"
)
FORMAT = 1
MAX_BYTES = 64 << 20
_NUMBERS = ("gsn", "chunk_cut", "version")


@dataclass(frozen=True, slots=True)
class TablePosition:
    gsn: int = 0
    chunk_cut: int = 0
    version: int = -1
    id: str = ""


#: nothing of a table is out
NOTHING = TablePosition()


@dataclass(frozen=True, slots=True)
class Position:
    #: by tenant and source
    cuts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tables: Mapping[TableId, TablePosition] = field(default_factory=dict)

    def of(self, table: TableId) -> TablePosition:
        return self.tables.get(table, NOTHING)

    def document(self) -> dict[str, Any]:
        sources = []
        for (tenant, source), cut in sorted(self.cuts.items()):
            of_source = [table for table in sorted(self.tables) if (table.tenant, table.source) == (tenant, source)]
            tables = [
                {"database": table.database, "table": table.table}
                | {name: getattr(self.tables[table], name) for name in (*_NUMBERS, "id")}
                for table in of_source
            ]
            sources.append({"tenant": tenant, "source": source, "cut": cut, "tables": tables})
        return {"format": FORMAT, "sources": sources}


BEGINNING = Position()


def is_same(one: Position | None, other: Position | None) -> bool:
    """By what each place keeps: Kafka keeps no cut of a source without tables, from which nothing is out.

    >>> is_same(None, Position({("acme", "shop"): 7}))
    True
    """
    tables, others = (found.tables if found is not None else {} for found in (one, other))
    if tables != others or one is None or other is None:
        return tables == others
    sources = {(table.tenant, table.source) for table in tables}
    return all(one.cuts[source] == other.cuts[source] for source in sources)


def read_position(text: str, where: str) -> Position:
    """Of `Position.document` as JSON. Raises `ExportPositionInvalid`.

    >>> read_position('{"format": 1, "sources": []}', "position.json")
    Position(cuts={}, tables={})
    """
    try:
        return _decode(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise ExportPositionInvalid(
            "reading an export's position",
            f"{where} can't be read ({type(wrong).__name__}: {wrong})",
            data="Nothing was exported",
            remedy="Put the file back; or begin anew in another folder, with --from state",
        ) from wrong


def _decode(document: dict[str, Any]) -> Position:
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}")
    cuts, tables = {}, {}
    for of in document["sources"]:
        tenant, source = str(of["tenant"]), str(of["source"])
        cuts[tenant, source] = int(of["cut"])
        for facts in of["tables"]:
            gsn, chunk_cut, version = (int(facts[name]) for name in _NUMBERS)
            table = TableId(tenant, source, str(facts["database"]), str(facts["table"]))
            tables[table] = TablePosition(gsn, chunk_cut, version, str(facts["id"]))
    return Position(cuts, tables)
