"""Writes landing folders as the gateway does, from changes given as plain rows."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from menura.change_batch import CHANGE_TYPE, LANDED_COLUMNS, METADATA_KEY, UNREPRESENTABLE
from menura.landing import LandedCut, LandedFile, LandedPosition, LogEntry, data_path, encode_entry, entry_path

Values = Mapping[str, object]
Change = tuple[str, Values]
COMMIT_US = 1_700_000_000_000_000


def insert(**values: object) -> list[Change]:
    return [("insert", values)]


def delete(**values: object) -> list[Change]:
    return [("delete", values)]


def update(before: Values, after: Values) -> list[Change]:
    return [("update_preimage", before), ("update_postimage", after)]


@dataclass(frozen=True)
class Table:
    """A table at one schema version: columns in order, and its key's."""

    name: str
    columns: Mapping[str, pa.DataType]
    key: Sequence[str] = ("id",)
    database: str = "shop"

    @property
    def schema_id(self) -> str:
        return f"{abs(hash((tuple(self.columns.items()), tuple(self.key)))) % 16**16:016x}"

    def landed_schema(self) -> pa.Schema:
        text = pa.dictionary(pa.int32(), pa.string())
        meta = [text, pa.int64(), pa.int64(), pa.int64(), text]
        places = {name: str(place) for place, name in enumerate(self.key, 1)}
        own = [
            pa.field(name, type_, metadata={METADATA_KEY: places[name]} if name in places else None)
            for name, type_ in self.columns.items()
        ]
        return pa.schema([*map(pa.field, LANDED_COLUMNS, meta), *own, pa.field(UNREPRESENTABLE, pa.string())])


@dataclass
class Writer:
    """One gateway's landing; each source has its own cuts and row numbers."""

    folder: Path
    entry: int = 0
    cuts: dict[tuple[str, str], int] = field(default_factory=dict)
    gsns: dict[tuple[str, str], itertools.count] = field(default_factory=dict)

    def cut(self, *batches: tuple[Table, Iterable[list[Change]]], tenant: str = "acme", source: str = "shop") -> int:
        """An entry with one cut of these changes; its cut's number."""
        return self.write_entry([self.make_cut(batches, tenant, source)]).cuts[0].cut

    def write_entry(self, cuts: Sequence[LandedCut]) -> LogEntry:
        self.entry += 1
        entry = LogEntry(self.entry, "gw-1", COMMIT_US + self.entry, tuple(cuts))
        path = self.folder / entry_path(self.entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_bytes(encode_entry(entry))
        draft.rename(path)
        return entry

    def make_cut(
        self, batches: Iterable[tuple[Table, Iterable[list[Change]]]], tenant: str = "acme", source: str = "shop"
    ) -> LandedCut:
        key = (tenant, source)
        number = self.cuts[key] = self.cuts.get(key, 0) + 1
        gsns = self.gsns.setdefault(key, itertools.count(1))
        files = [self._file(table, changes, tenant, source, number, gsns) for table, changes in batches]
        last = next(gsns)
        return LandedCut(
            tenant,
            source,
            1,
            number,
            1,
            "mysql",
            LandedPosition(),
            last,
            number,
            1,
            COMMIT_US,
            COMMIT_US,
            files=tuple(files),
        )

    def _file(
        self, table: Table, changes: Iterable[list[Change]], tenant: str, source: str, cut: int, gsns: itertools.count
    ) -> LandedFile:
        rows: list[dict[str, object]] = []
        for change in changes:
            gsn = next(gsns)
            rows.extend(
                {CHANGE_TYPE: kind, "_gsn": gsn, "_transaction_id": cut, "_commit_timestamp_us": COMMIT_US,
                 "_position": f"gtid:{cut}", **values}
                for kind, values in change
            )  # fmt: skip
        path = data_path(tenant, source, table.database, table.name, 1, cut, table.schema_id)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.landed_schema()), target, compression="zstd")
        first, last = rows[0]["_gsn"], rows[-1]["_gsn"]
        assert isinstance(first, int) and isinstance(last, int)
        return LandedFile(
            table.database, table.name, table.schema_id, path, len(rows), target.stat().st_size, first, last
        )
