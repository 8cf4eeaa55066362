"""A table whose changes wait, beside another one, and what readers shall find of both at each cut."""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from spark_sink.ingest.query import Sink
from spark_sink.lake.boundaries import read_boundaries
from spark_sink.lake.delta_table import open_table
from spark_sink.reading import current_state
from spark_sink.reading_at import lake_at
from tests.spark_sink.landing import Batch, Change, Table, Writer, insert, table_id, update
from tests.spark_sink.test_catching_up import applied

LARGE = Table("large", {"id": pa.int64(), "v": pa.int32()})
SMALL = Table("small", {"id": pa.int32()})
ROWS = 40


@dataclass
class Source:
    writer: Writer
    #: by key
    rows: dict[int, int] = field(default_factory=dict)
    #: of each cut
    states: dict[int, dict[int, int]] = field(default_factory=dict)

    def begin(self) -> None:
        self.rows = dict.fromkeys(range(ROWS), 0)
        self.cut((LARGE, [insert(id=key, v=0) for key in self.rows]))

    def change(self, *keys: int) -> list[list[Change]]:
        """Two rows of the changelog each."""
        changes = [update({"id": key, "v": self.rows[key]}, {"id": key, "v": self.rows[key] + 1}) for key in keys]
        self.rows.update({key: self.rows[key] + 1 for key in keys})
        return changes

    def cut(self, *batches: Batch) -> None:
        number = self.writer.cut(*batches, (SMALL, [insert(id=len(self.states))]))
        self.states[number] = dict(self.rows)


def folder(lake: Path, kind: str) -> str:
    return f"{table_id(LARGE).folder(str(lake))}/{kind}"


def merged(lake: Path) -> dict[int, int]:
    """As who knows of no changelog reads it."""
    return by_key(DeltaTable(folder(lake, "current")).to_pyarrow_table())


def by_key(rows: pa.Table) -> dict[int, int]:
    found = {row["id"]: row["v"] for row in rows.to_pylist()}
    assert len(found) == len(rows)
    return found


def check_readers(lake: Path, source: Source) -> None:
    """At this moment, and at each cut, alone and together with the other table."""
    assert by_key(current_state(str(lake), table_id(LARGE))) == source.rows
    boundaries = {each.cut for each in read_boundaries(open_table(f"{lake}/_menura/cuts"), "acme", "shop").found}
    assert max(boundaries) == max(source.states)
    for cut, rows in source.states.items():
        if cut not in boundaries:
            continue
        assert by_key(current_state(str(lake), table_id(LARGE), cut)) == rows, cut
        at = lake_at(str(lake), [table_id(LARGE), table_id(SMALL)], cuts={("acme", "shop"): cut}, allow_incomplete=True)
        assert by_key(at.arrow(table_id(LARGE))) == rows, cut
        assert at.arrow(table_id(SMALL)).num_rows == cut


def land(sink: Sink, source: Source, *batches: Batch) -> None:
    source.cut(*batches)
    applied(sink, source.writer)


def prepared_files(lake: Path) -> set[str]:
    return {path.name for path in Path(folder(lake, "current")).glob("merge*-*")}
