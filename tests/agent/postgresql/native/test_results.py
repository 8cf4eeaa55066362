"""Rows of SELECTs: how the answer ends, batches, keys, and what is refused."""

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.native.results import ResultError, ResultReason, RowsDecoder, RowsPlan
from agent.sources.postgresql.types import builtin_type
from tests.agent.postgresql.native.capture import selected
from tests.postgres import SourceServer

INTEGER, TEXT = builtin_type(23, -1), builtin_type(25, -1)
assert INTEGER is not None
assert TEXT is not None
COLUMNS = (Column("id", INTEGER, key=1), Column("t", TEXT))


def frame(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack(">i", len(body) + 4) + body


def row(*values: bytes | None) -> bytes:
    fields = b"".join(
        struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in values
    )
    return frame("D", struct.pack(">H", len(values)) + fields)


DESCRIPTION = frame("T", struct.pack(">H", 2) + b"whatever")
END = frame("C", b"SELECT 1\0") + frame("Z", b"I")


def read(decoder: RowsDecoder, data: bytes, chunk: int = 1 << 20) -> Iterator[ResultReason]:
    at = 0
    while at < len(data):
        space = decoder.writable()
        size = min(len(space), chunk, len(data) - at)
        space[:size] = data[at : at + size]
        decoder.received(size)
        at += size
        while (reason := decoder.decode()) is not ResultReason.NEED_BYTES:
            yield reason


def taken(decoder: RowsDecoder) -> list[dict[str, object]]:
    count, columns = decoder.take_rows()
    found = pa.record_batch(columns)
    found.validate(full=True)
    assert found.num_rows == count
    return found.to_pylist()


def test_rows_come_in_batches_with_the_last_ones_key(server: SourceServer) -> None:
    server.run(
        "CREATE TABLE a (id integer PRIMARY KEY, t text)",
        "INSERT INTO a SELECT n, 'text ' || n FROM generate_series(1, 100) n",
        database="shop",
    )
    data = selected(server, "SELECT id, t, id::text, t FROM a ORDER BY 1")

    for chunk in (1, 100, 1 << 20):
        decoder = RowsDecoder(RowsPlan(COLUMNS, 2), batch_rows=30)
        rows, keys = [], []
        assert decoder.last_key is None
        reasons = []
        for reason in read(decoder, data, chunk):
            reasons.append(reason)
            keys.append(decoder.last_key)
            rows += taken(decoder)
        assert reasons == [ResultReason.BATCH_FULL] * 3 + [ResultReason.COMPLETE]
        assert keys == [(str(n).encode(), f"text {n}".encode()) for n in (30, 60, 90, 100)]
        assert [(found["id"], found["t"]) for found in rows] == [(n, f"text {n}") for n in range(1, 101)]
        assert decoder.rows == 100
        assert 0 < decoder.source_bytes < len(data)


def test_an_error_ends_in_an_answer_too(server: SourceServer) -> None:
    data = selected(server, "SELECT 1 / (3 - n), 'x' FROM generate_series(1, 5) n")
    decoder = RowsDecoder(RowsPlan(COLUMNS))

    reasons = list(read(decoder, data))

    assert reasons == [ResultReason.ERROR, ResultReason.COMPLETE]
    assert decoder.error["C"] == "22012"
    assert "division by zero" in decoder.error["M"]
    assert decoder.batch_row_count == 2


def test_a_statement_without_rows_may_come_before(server: SourceServer) -> None:
    data = selected(server, "SET LOCAL enable_seqscan = on; SELECT 7, 'x'")
    decoder = RowsDecoder(RowsPlan(COLUMNS))

    assert list(read(decoder, data)) == [ResultReason.COMPLETE]
    assert taken(decoder) == [{"id": 7, "t": "x", "_unrepresentable": None}]


def test_no_rows_have_no_key() -> None:
    decoder = RowsDecoder(RowsPlan(COLUMNS[:1], 1))

    assert list(read(decoder, DESCRIPTION + END)) == [ResultReason.COMPLETE]
    assert decoder.last_key is None
    assert taken(decoder) == []


def test_an_empty_key_is_a_key() -> None:
    decoder = RowsDecoder(RowsPlan(COLUMNS[:1], 1))

    assert list(read(decoder, DESCRIPTION + row(b"1", b"") + END)) == [ResultReason.COMPLETE]
    assert decoder.last_key == (b"",)


def test_a_large_row_is_a_batch_of_its_own() -> None:
    large = row(b"2", b"x" * (150 << 20))
    decoder = RowsDecoder(RowsPlan(COLUMNS, 0), most_batch_bytes=1 << 30)

    counts = [
        decoder.take_rows()[0] for _ in read(decoder, DESCRIPTION + row(b"1", b"y") + large + large + END, 1 << 24)
    ]

    assert counts == [2, 1]


def test_the_key_is_that_of_the_last_row_that_fits() -> None:
    large = b"x" * (130 << 20)
    plan = RowsPlan(COLUMNS[1:], 1)
    decoder = RowsDecoder(plan, most_batch_bytes=1 << 30)

    keys = []
    for _ in read(decoder, DESCRIPTION + row(large, b"1") + row(large, b"2") + END, 1 << 24):
        keys.append(decoder.last_key)
        decoder.take_rows()

    assert keys == [(b"1",), (b"2",)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame("T", struct.pack(">H", 3)), "another number of columns"),
        (frame("T", b"\0"), "another number of columns"),
        (END, "does not belong"),
        (row(b"1", b"x"), "does not belong"),
        (DESCRIPTION + row(b"1"), "another number of columns"),
        (DESCRIPTION + row(b"one", b"x"), "integer that is none"),
        (DESCRIPTION + frame("D", b"\0\2\0\0\0\5ab"), "ends inside a value"),
        (DESCRIPTION + frame("D", b"\0\2\xff\xff\xff\xff"), "ends inside a value"),
        (DESCRIPTION + frame("D", b"\0\2\xff\xff\xff\xff\xff\xff\xff\xff\0"), "longer than its values"),
        (DESCRIPTION + frame("D", b"\0"), "another number of columns"),
        (DESCRIPTION + DESCRIPTION, "does not belong"),
        (DESCRIPTION + END + END, "behind the end"),
        (b"D\0\0\0\3", "impossible length"),
        (b"D\xff\xff\xff\xff", "impossible length"),
        (frame("G", b""), "does not belong"),
    ],
)
def test_what_is_no_such_answer_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ResultError, match=why) as refused:
        list(read(RowsDecoder(RowsPlan(COLUMNS)), data))

    assert refused.value.column in ("", "id", "t")


def test_a_null_key_is_refused() -> None:
    with pytest.raises(ResultError, match="key is NULL"):
        list(read(RowsDecoder(RowsPlan(COLUMNS[:1], 1)), DESCRIPTION + row(b"1", None)))


def test_a_failed_row_leaves_the_key_of_the_one_before_it() -> None:
    first, second = RowsDecoder(RowsPlan(COLUMNS[:1], 1)), RowsDecoder(RowsPlan(COLUMNS[:1], 1))
    cut_off = frame("D", b"\0\2\0\0\0\1" + b"2")

    with pytest.raises(ResultError, match="ends inside a value"):
        list(read(first, DESCRIPTION + row(b"1", b"one") + cut_off))
    with pytest.raises(ResultError, match="ends inside a value"):
        list(read(second, DESCRIPTION + cut_off))

    assert (first.last_key, second.last_key) == ((b"one",), None)


def test_a_failed_row_leaves_those_before_it() -> None:
    decoder = RowsDecoder(RowsPlan(COLUMNS))

    with pytest.raises(ResultError) as refused:
        list(read(decoder, DESCRIPTION + row(b"1", b"x") + row(None, b"\xff") + row(b"2", b"y") + row(b"x", b"z")))

    assert refused.value.column == "id"
    assert [(found["id"], found["t"], found["_unrepresentable"]) for found in taken(decoder)] == [
        (1, "x", None),
        (None, None, '{"t":"0xFF"}'),
        (2, "y", None),
    ]


def test_a_plan_is_of_one_decoder_at_a_time() -> None:
    plan = RowsPlan(COLUMNS)
    first = RowsDecoder(plan)
    list(read(first, DESCRIPTION + row(b"1", b"x")))
    with pytest.raises(ValueError, match="another reader"):
        RowsDecoder(plan)
    del first

    second = RowsDecoder(plan)

    assert second.batch_row_count == 0
