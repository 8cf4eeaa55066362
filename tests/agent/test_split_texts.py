"""Texts of one length: which columns travel split, and that all come back as they were."""

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from menura.change_batch import METADATA_SPLIT_TEXTS, Compression

from agent.columnar.encode import SnapshotRows, encode_snapshot
from agent.sources.postgresql.native.results import RowsDecoder, RowsPlan
from gateway.wire.arrow import read_stream
from tests.agent.postgresql.native.test_results import COLUMNS, DESCRIPTION, END, read, row

LEAST_ROWS = 4096


def sent(texts: list[str | None], compression: Compression = Compression.LZ4) -> tuple[pa.RecordBatch, bool]:
    """What arrives of rows with these texts, and whether the texts travelled split."""
    decoder = RowsDecoder(RowsPlan(COLUMNS), batch_rows=len(texts) + 1)
    rows = (row(str(i).encode(), None if text is None else text.encode()) for i, text in enumerate(texts))
    for _ in read(decoder, DESCRIPTION + b"".join(rows) + END):
        pass
    count, columns = decoder.take_rows()
    encoded = encode_snapshot(SnapshotRows(count, "", columns), compression)
    data = pa.decompress(b"".join(encoded.rows), decompressed_size=encoded.rows_bytes, codec=str(compression))
    names = pa.ipc.open_stream(data).schema.metadata.get(METADATA_SPLIT_TEXTS.encode())
    assert names in (None, b"1")
    return read_stream(b"".join(encoded.rows), encoded.rows_bytes, lambda schema: None), names is not None


@pytest.mark.parametrize("rows", [LEAST_ROWS, LEAST_ROWS + 13])
@pytest.mark.parametrize("width", [7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64])
@pytest.mark.parametrize("compression", Compression)
def test_numbered_texts_travel_split_and_come_back(width: int, rows: int, compression: Compression) -> None:
    texts: list[str | None] = [f"{i:0{width}d}" for i in range(rows)]

    arrived, is_split = sent(texts, compression)

    assert is_split
    assert arrived.column("t").to_pylist() == texts
    assert arrived.column("id").to_pylist() == list(range(rows))


CHANCE = random.Random(7)
REPEATED = ["".join(CHANCE.choices("0123456789abcdef", k=36)) for _ in range(10)]
UNSPLIT: dict[str, Callable[[int], str | None]] = {
    "few values that repeat": lambda i: CHANCE.choice(REPEATED),
    "chance": lambda i: "".join(CHANCE.choices("0123456789abcdef", k=12)),
    "one byte": lambda i: str(i % 10),
    "too long": lambda i: f"{i:065d}",
    "two lengths": lambda i: f"{i:08d}" if i else "1234567890123456",
    "lengths with a whole mean": lambda i: "x" * (7 + i % 3),
    "a NULL": lambda i: None if i == 17 else f"{i:08d}",
    "empty": lambda i: "",
}


@pytest.mark.parametrize("kind", UNSPLIT)
def test_other_texts_travel_as_they_are(kind: str) -> None:
    texts = [UNSPLIT[kind](i) for i in range(LEAST_ROWS + 2)]

    arrived, is_split = sent(texts)

    assert not is_split
    assert arrived.column("t").to_pylist() == texts


def test_texts_of_few_rows_travel_as_they_are() -> None:
    texts: list[str | None] = [f"{i:08d}" for i in range(LEAST_ROWS - 1)]

    arrived, is_split = sent(texts)

    assert not is_split
    assert arrived.column("t").to_pylist() == texts
