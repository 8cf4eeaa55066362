"""Encoding a batch: what travels is what was decoded."""

import pyarrow as pa
import pytest
from menura.change_batch import LAYOUT_SPLIT, METADATA_LAYOUT, Compression

from agent.columnar import encode as encoding
from agent.columnar.encode import SnapshotRows, encode, encode_snapshot
from agent.sources.mysql.native.decoder import BinlogDecoder, TableBatch
from gateway.wire.arrow import read_stream
from tests.agent.native.capture import decode_all
from tests.golden import golden

LZ4 = Compression.LZ4
each_compression = pytest.mark.parametrize("compression", Compression)


def _batch() -> TableBatch:
    decoder = BinlogDecoder(mariadb=False, checksum=True, next_gsn=11, next_transaction_id=5)
    (batch,) = decode_all(golden("mysql_temporal").data, mariadb=False, decoder=decoder).batches
    return batch


def _read(frame: bytes, size_bytes: int) -> pa.RecordBatch:
    return read_stream(frame, size_bytes, lambda schema: None)


@each_compression
def test_an_encoded_stream_says_that_its_values_are_split_and_is_arrow_otherwise(compression: Compression) -> None:
    batch = _batch()
    schema = pa.record_batch(batch.rows).schema

    encoded = encode(batch, compression)

    data = pa.decompress(b"".join(encoded.rows), decompressed_size=encoded.rows_bytes, codec=str(compression))
    (split,) = list(pa.ipc.open_stream(data))
    assert split.schema.metadata == {METADATA_LAYOUT.encode(): LAYOUT_SPLIT.encode()}
    assert split.schema.remove_metadata().equals(schema, check_metadata=True)
    numbers = split.column("_gsn").buffers()[1].to_pybytes()
    first = numbers[: batch.row_count]
    assert list(first) == [number & 0xFF for number in range(batch.first_gsn, batch.last_gsn + 1)]


@each_compression
def test_encoded_rows_when_read_back_are_the_decoded_ones(compression: Compression) -> None:
    batch = _batch()
    rows, transactions = (pa.record_batch(part) for part in (batch.rows, batch.transactions))

    encoded = encode(batch, compression)

    assert _read(b"".join(encoded.rows), encoded.rows_bytes).equals(rows, check_metadata=True)
    assert _read(encoded.transactions, encoded.transactions_bytes).equals(transactions)
    assert batch.rows.length == batch.transactions.length == 0


@each_compression
def test_a_large_stream_is_one_frame_in_pieces(compression: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LARGE_STREAM_BYTES", 100)
    monkeypatch.setattr(encoding, "PIECE_BYTES", 64)
    batch = _batch()
    rows = pa.record_batch(batch.rows)

    encoded = encode(batch, compression)

    assert len(encoded.rows) > 2
    assert _read(b"".join(encoded.rows), encoded.rows_bytes).equals(rows, check_metadata=True)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 65, 1000])
@pytest.mark.parametrize("values", [(True, False), (None, True, False), (None,)])
def test_truth_values_of_another_library_when_read_back_are_as_they_were(
    values: tuple[bool | None, ...], rows: int
) -> None:
    bits = pa.array([values[number % len(values)] for number in range(rows)], pa.bool_())
    sent = pa.record_batch({"bits": bits, "beside": pa.array(range(rows)), "bits again": bits})

    encoded = encode_snapshot(SnapshotRows(rows, "", sent), LZ4)

    assert _read(b"".join(encoded.rows), encoded.rows_bytes).equals(sent)


def test_truth_values_of_a_slice_when_encoded_are_refused_and_not_shifted() -> None:
    sent = pa.record_batch({"bits": pa.array([True, False] * 20)}).slice(8, 8)
    with pytest.raises(Exception, match="nonzero offset"):
        encode_snapshot(SnapshotRows(8, "", sent), LZ4)


def test_a_batch_says_the_numbers_of_its_first_and_last_row() -> None:
    batch = _batch()
    assert batch.first_gsn == 11
    assert batch.last_gsn == 10 + batch.row_count


def test_exported_columns_outlive_their_batch() -> None:
    batch = _batch()
    expected = pa.record_batch(batch.rows).to_pylist()

    rows = pa.record_batch(batch.rows)
    column = rows.column(3)
    del batch, rows

    assert column.to_pylist() == [next(iter(list(row.values())[3:])) for row in expected]


def test_a_new_batch_of_the_same_table_leaves_the_sent_one_as_it_is() -> None:
    decoder = BinlogDecoder(mariadb=False, checksum=True, next_gsn=1, next_transaction_id=1, batch_rows=2)

    batches = decode_all(golden("mysql_temporal").data, mariadb=False, decoder=decoder).batches

    rows = [row["id"] for batch in batches for row in pa.record_batch(batch.rows).to_pylist()]
    assert rows == sorted(rows)
    assert len(batches) == 2
