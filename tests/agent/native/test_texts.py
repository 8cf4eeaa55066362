"""Texts of every short length, with other signs at each place: rows made by hand, Python's UTF-8 as the oracle."""

import json

import pyarrow as pa

from agent.sources.mysql.columns import Column
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.table_map import parse_table_map
from agent.sources.mysql.native.decoder import BinlogDecoder, PlannedColumn, Reason, TablePlan
from agent.sources.mysql.schema.column_types import column_type
from tests.agent.native.mutation import event

TABLE_ID = b"\7\0\0\0\0\0"
#: VARCHAR of up to 400 bytes, so lengths have two; charset utf8mb4; its name is `v`
TABLE_MAP = TABLE_ID + b"\1\0\1t\0\1t\0" + b"\1\x0f\2\x90\1\1" + b"\2\1\x2d" + b"\4\2\1v"
LONGEST = 70


def _texts() -> list[bytes]:
    texts = [b"abcdefghij"[: size % 10] + b"0123456789" * (size // 10) for size in range(LONGEST)]
    for other in ("ü".encode(), "€".encode(), "😀".encode(), b"\xff", b"\xc3"):
        texts += [
            text[:place] + other + text[place:] for text in list(texts[:LONGEST]) for place in range(len(text) + 1)
        ]
    return texts


def test_text_of_any_short_length_when_a_sign_is_beyond_ascii_at_any_place_then_equals_python() -> None:
    texts = _texts()
    body = TABLE_ID + b"\1\0\2\0\1\1" + b"".join(b"\0" + len(text).to_bytes(2, "little") + text for text in texts)
    stream = b"".join(
        [
            event(binlog.QUERY_EVENT, bytes(8) + b"\1\0\0\0\0" + b"t\0BEGIN"),
            event(binlog.TABLE_MAP_EVENT, TABLE_MAP),
            event(binlog.WRITE_ROWS_EVENT, body),
        ]
    )
    decoder = BinlogDecoder(mariadb=False, checksum=True, next_gsn=1, next_transaction_id=1)
    (mapped,) = parse_table_map(TABLE_MAP, mariadb=False).columns
    column = Column("v", column_type(mapped, mariadb=False))
    planned = [PlannedColumn(column, mapped.type, mapped.metadata, sent=True)]

    while stream:
        space = decoder.writable()
        size = min(len(space), len(stream))
        space[:size] = stream[:size]
        decoder.received(size)
        stream = stream[size:]
        while (reason := decoder.decode()) is not Reason.NEED_BYTES:
            assert reason is Reason.EVENT
            decoder.define_table(7, TABLE_MAP, TablePlan("t", "t", "", planned))
    (batch,) = decoder.take_batches()
    rows = pa.record_batch(batch.rows).to_pylist()

    assert len(rows) == len(texts)
    for text, row in zip(texts, rows, strict=True):
        try:
            expected, left = text.decode(), None
        except UnicodeDecodeError:
            expected, left = None, {"v": f"0x{text.hex().upper()}"}
        assert row["v"] == expected
        assert (json.loads(row["_unrepresentable"]) if row["_unrepresentable"] else None) == left
