"""Encoding a batch: what travels is what was decoded."""

import pyarrow as pa

from agent.batch import encode
from agent.native.decoder import BinlogDecoder, TableBatch
from tests.agent.native.capture import decode_all
from tests.golden import golden


def _batch() -> TableBatch:
    decoder = BinlogDecoder(mariadb=False, checksum=True, next_gsn=11, next_transaction_id=5)
    (batch,) = decode_all(golden("mysql_temporal").data, mariadb=False, decoder=decoder).batches
    return batch


def _read(frame: bytes, size_bytes: int) -> pa.RecordBatch:
    data = pa.decompress(frame, decompressed_size=size_bytes, codec="zstd")
    (batch,) = list(pa.ipc.open_stream(data))
    return batch


def test_encoded_rows_when_read_back_are_the_decoded_ones() -> None:
    batch = _batch()

    encoded = encode(batch)

    assert _read(encoded.rows, encoded.rows_bytes).equals(pa.record_batch(batch.rows), check_metadata=True)
    assert _read(encoded.transactions, encoded.transactions_bytes).equals(pa.record_batch(batch.transactions))
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
