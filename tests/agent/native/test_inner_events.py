"""Events inside of others: compressed transactions of a real server and made by hand, kept and injected events."""

import sys
from collections.abc import Iterator

import pytest

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError, Reason
from tests.agent.native.capture import Decoded, decode_all, handle, logged
from tests.agent.native.mutation import event, packets, payloads, without_checksums
from tests.servers import Server

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SHOP = (
    "DROP TABLE IF EXISTS orders, parts",
    "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
    "CREATE TABLE parts (id INT PRIMARY KEY AUTO_INCREMENT, order_id INT, note TEXT)",
    "SET SESSION binlog_transaction_compression = ON",
    "INSERT INTO orders VALUES (1, 'one'), (2, REPEAT('two', 500))",
    "BEGIN",
    "INSERT INTO parts (order_id, note) SELECT id, note FROM orders",
    "UPDATE orders SET note = CONCAT(note, '!')",
    "DELETE FROM orders WHERE id = 1",
    "COMMIT",
    "SET SESSION binlog_transaction_compression = OFF",
    "INSERT INTO orders VALUES (3, 'three')",
)


def _decoder(*, checksum: bool = True, **limits: int) -> BinlogDecoder:
    return BinlogDecoder(mariadb=False, checksum=checksum, next_gsn=1, next_transaction_id=1, **limits)


def _rows(decoded: Decoded, name: str) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "_transaction"} for row in decoded.table(name).to_pylist()]


def _inner(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(payload of the packet, its events) of each compressed transaction."""
    for payload in payloads(data):
        if len(payload) > 20 and payload[5] == binlog.TRANSACTION_PAYLOAD_EVENT:
            yield payload, zstd.decompress(payload[payload.index(b"\x28\xb5\x2f\xfd") : -4])


def _number(value: int) -> bytes:
    return bytes([value]) if value < 251 else b"\xfe" + value.to_bytes(8, "little")


def _field(kind: int, value: int) -> bytes:
    return _number(kind) + _number(len(_number(value))) + _number(value)


def _payload(compressed: bytes, size: int, compression: int = 0) -> bytes:
    """A TRANSACTION_PAYLOAD_EVENT's body."""
    return _field(2, compression) + _field(3, size) + _field(1, len(compressed)) + b"\0" + compressed


def _raw(type_: int, body: bytes) -> bytes:
    """An inner event: no checksum, no place in the file."""
    return event(type_, body, checksum=False, log_pos=0)[5:]


GTID = event(binlog.GTID_LOG_EVENT, bytes(1) + bytes(range(16)) + (7).to_bytes(8, "little") + bytes(17))
BEGIN = _raw(binlog.QUERY_EVENT, bytes(8) + b"\0" + bytes(4) + b"\0BEGIN")
XID = _raw(binlog.XID_EVENT, bytes(8))


def test_compressed_transactions_give_the_same_rows_as_plain_ones(mysql: Server) -> None:
    compressed = logged(mysql, *SHOP)
    plain = logged(mysql, *[statement for statement in SHOP if "compression" not in statement])

    assert len(list(_inner(compressed))) == 2
    for name in ("orders", "parts"):
        assert _rows(decode_all(compressed, mariadb=False), name) == _rows(decode_all(plain, mariadb=False), name)


def test_compressed_transaction_ends_at_the_position_of_its_payload(mysql: Server) -> None:
    data = logged(mysql, *SHOP)
    decoder = _decoder()
    decoder.stop_at_transaction_end = True
    decoder.writable()[: len(data)] = data
    decoder.received(len(data))
    ends = []
    while (reason := decoder.decode()) is not Reason.END_OF_STREAM:
        if reason is Reason.EVENT:
            handle(decoder, decoder.event, mariadb=False)
        elif reason is Reason.TRANSACTION_END:
            ends.append(decoder.transaction_end_offset)

    expected = [int.from_bytes(payload[14:18], "little") for payload, _ in _inner(data)]
    assert ends[:2] == expected
    assert ends[2] > ends[1]
    assert decoder.take_gtids()[-1][2] - decoder.transactions >= 0


@pytest.mark.parametrize("limits", [{"batch_rows": 1}, {"pending_bytes": 100}])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_batches_full_inside_a_compressed_transaction_go_on_with_the_next_row(
    mysql: Server, limits: dict[str, int], chunk: int
) -> None:
    data = logged(mysql, *SHOP)
    whole = decode_all(data, mariadb=False)

    decoded = decode_all(data, mariadb=False, decoder=_decoder(**limits), chunk=chunk)

    assert decoded.reasons.count(Reason.BATCH_FULL) > 3
    for name in ("orders", "parts"):
        assert _rows(decoded, name) == _rows(whole, name)


def test_compressed_transaction_is_streamed_through_a_small_buffer(mysql: Server) -> None:
    """60 MB of rows that compress to a few KB, a batch per row."""
    rows = 10
    data = logged(
        mysql,
        "DROP TABLE IF EXISTS big",
        "CREATE TABLE big (id INT PRIMARY KEY, note LONGTEXT)",
        "SET SESSION binlog_transaction_compression = ON",
        "BEGIN",
        *(f"INSERT INTO big VALUES ({number}, REPEAT('menura', 1000000))" for number in range(rows)),
        "COMMIT",
    )
    (payload, _), decoder = next(_inner(data)), _decoder(pending_bytes=1 << 20)
    decoded = []
    decoder.writable()[: len(data)] = data
    decoder.received(len(data))
    while (reason := decoder.decode()) is not Reason.END_OF_STREAM:
        if reason is Reason.EVENT:
            handle(decoder, decoder.event, mariadb=False)
        for batch in decoder.take_batches():
            decoded.append(batch.row_count)
    decoded += [batch.row_count for batch in decoder.take_batches()]

    assert len(payload) < 200_000
    assert sum(decoded) == rows == decoder.rows
    assert max(decoded) == 1


def test_payload_without_compression_is_read(mysql: Server) -> None:
    data = without_checksums(logged(mysql, *SHOP))
    changed = b""
    for payload in payloads(data):
        if len(payload) > 20 and payload[5] == binlog.TRANSACTION_PAYLOAD_EVENT:
            events = zstd.decompress(payload[payload.index(b"\x28\xb5\x2f\xfd") :])
            body = _field(2, 255) + _field(1, len(events)) + b"\0" + events
            changed += event(binlog.TRANSACTION_PAYLOAD_EVENT, body, checksum=False)
        else:
            changed += packets(payload)
    plain = decode_all(changed, mariadb=False, decoder=_decoder(checksum=False))

    assert len(plain.table("orders")) == 8
    zipped = decode_all(data, mariadb=False, decoder=_decoder(checksum=False))
    assert _rows(plain, "orders") == _rows(zipped, "orders")


def _broken_payloads() -> Iterator[tuple[bytes, str]]:
    good = BEGIN + XID
    frame = zstd.compress(good)
    yield b"", "inside of its fields"
    yield _field(2, 0) + _field(3, 9), "inside of its fields"
    yield _field(2, 0)[:1] + b"\x09\x00", "inside of its fields"
    yield b"\2\2\0\0" + b"\0", "is no number"
    yield _field(3, 1) + b"\0", "without its size or its compression"
    yield _field(2, 0) + _field(1, 0) + b"\0", "how large"
    yield _field(9, 0) + _field(2, 0) + _field(1, 0) + b"\0", "field that is not known"
    yield _payload(frame, len(good), compression=7), "compression that is not known"
    yield _payload(frame, len(good)) + b"x", "another size"
    yield _payload(frame[:-1], len(good)), "ends too early"
    yield _payload(frame + b"x", len(good)), "behind the end of a zstd frame"
    yield _payload(frame + frame, 2 * len(good)), "behind the end of a zstd frame"
    yield _payload(b"no zstd frame", 9), "zstd can't decompress"
    yield _payload(b"", 0), "ends too early"
    yield _payload(frame, len(good) + 1), "fewer decompressed bytes"
    yield _payload(frame, len(good) - 1), "more decompressed bytes"
    yield _payload(good[:-1], 0, compression=255), "end inside of one"
    yield _payload(bytes(30), 0, compression=255), "shorter than its header"
    yield _payload(b"\xff" * 30, 0, compression=255), "larger than the server may write"
    yield _payload(zstd.compress(bytes(1 << 28)), 1 << 28), "shorter than its header"
    nested = _raw(binlog.TRANSACTION_PAYLOAD_EVENT, _payload(good, 0, compression=255))
    yield _payload(nested, 0, compression=255), "can't be inside"
    yield _payload(_raw(binlog.ROTATE_EVENT, bytes(9)), 0, compression=255), "can't be inside"
    yield _payload(XID + good, 0, compression=255), "has not begun|before the one before"


@pytest.mark.parametrize(("body", "why"), list(_broken_payloads()))
def test_broken_payload_is_a_decode_error_that_says_why(body: bytes, why: str) -> None:
    prefix = b"" if "has not begun" in why else GTID
    data = prefix + event(binlog.TRANSACTION_PAYLOAD_EVENT, body, log_pos=4321)

    with pytest.raises(DecodeError, match=why) as caught:
        decode_all(data, mariadb=False)

    assert caught.value.log_pos == 4321
    assert caught.value.event_type in (binlog.TRANSACTION_PAYLOAD_EVENT, binlog.ROTATE_EVENT, binlog.XID_EVENT)


def test_inner_event_grows_its_buffer_only_as_it_comes() -> None:
    """An event that announces 1 GiB in a payload of 60 bytes."""
    liar = bytearray(BEGIN + XID)
    liar[9:13] = (1 << 30).to_bytes(4, "little")

    with pytest.raises(DecodeError, match="end inside of one"):
        decode_all(GTID + event(binlog.TRANSACTION_PAYLOAD_EVENT, _payload(bytes(liar), 0, 255)), mariadb=False)


def test_kept_events_when_injected_give_the_rows_they_would_have_given(source: Server) -> None:
    mariadb = source.flavor == "mariadb"
    data = logged(source, *[statement for statement in SHOP if not mariadb or "compression" not in statement])
    whole = decode_all(data, mariadb=mariadb)
    decoder = BinlogDecoder(mariadb=mariadb, checksum=True, next_gsn=1, next_transaction_id=1)
    decoder.keep_events = True

    nothing = decode_all(data, mariadb=mariadb, decoder=decoder)
    kept = decoder.take_kept()

    assert not nothing.batches
    assert decoder.kept_bytes == 0
    assert decoder.rows == 0
    assert kept.count(b"orders") >= 3
    later = BinlogDecoder(mariadb=mariadb, checksum=True, next_gsn=1, next_transaction_id=1)
    later.inject(kept)
    reasons, batches = [], []
    while (reason := later.decode()) is not Reason.NEED_BYTES:
        reasons.append(reason)
        if reason is Reason.EVENT:
            handle(later, later.event, mariadb=mariadb)
    batches = later.take_batches()
    assert reasons[-1] is Reason.INJECTED
    assert later.in_transaction
    later.transaction_finished()
    assert (later.transactions, later.in_transaction) == (1, False)
    for name in ("orders", "parts"):
        assert _rows(Decoded(batches), name) == _rows(whole, name)


def test_kept_events_are_taken_in_portions_when_they_reach_the_limit(source: Server) -> None:
    mariadb = source.flavor == "mariadb"
    data = logged(source, *[statement for statement in SHOP if not mariadb or "compression" not in statement])
    decoder = BinlogDecoder(mariadb=mariadb, checksum=True, next_gsn=1, next_transaction_id=1, pending_bytes=300)
    decoder.keep_events = True
    decoder.writable()[: len(data)] = data
    decoder.received(len(data))
    portions = []
    while (reason := decoder.decode()) is not Reason.END_OF_STREAM:
        if reason is Reason.BATCH_FULL:
            portions.append(decoder.take_kept())
        elif reason is Reason.EVENT:
            handle(decoder, decoder.event, mariadb=mariadb)
    portions.append(decoder.take_kept())

    unlimited = BinlogDecoder(mariadb=mariadb, checksum=True, next_gsn=1, next_transaction_id=1)
    unlimited.keep_events = True
    decode_all(data, mariadb=mariadb, decoder=unlimited)
    assert b"".join(portions) == unlimited.take_kept()
    assert len(portions) > 5


def test_injected_events_that_are_broken_are_a_decode_error() -> None:
    for events, why in ((bytes(30), "shorter than its header"), (XID[:-1], "end inside of one")):
        decoder = _decoder()
        decoder.inject(events)
        with pytest.raises(DecodeError, match=why):
            decoder.decode()


def test_inject_before_the_last_events_are_decoded_is_refused() -> None:
    decoder = _decoder()
    decoder.inject(b"")
    with pytest.raises(ValueError, match="in the middle"):
        decoder.inject(b"")
    assert decoder.decode() is Reason.INJECTED
    decoder.inject(b"")
    assert decoder.decode() is Reason.INJECTED
    assert decoder.decode() is Reason.NEED_BYTES


def test_offset_in_a_file_above_4_gib_counts_on_where_its_events_begin_anew() -> None:
    decoder = _decoder()
    decoder.stop_at_transaction_end = True
    decoder.set_file("binlog.000001")
    for end in (1000, 3 << 30, (4 << 30) + 500, (4 << 30) + 500, 6 << 30, (8 << 30) - 1, (8 << 30) + 77):
        body = bytes(8) + b"\0" + bytes(4) + b"\0BEGIN"
        begin = event(binlog.QUERY_EVENT, body, log_pos=(end - 31) % (1 << 32))
        data = begin + event(binlog.XID_EVENT, bytes(8), log_pos=end % (1 << 32))
        decoder.writable()[: len(data)] = data
        decoder.received(len(data))
        assert decoder.decode() == Reason.TRANSACTION_END
        assert decoder.transaction_end_offset == end
        assert decoder.decode() == Reason.NEED_BYTES
    decoder.set_file("binlog.000002")
    assert decoder.transaction_end_offset == 0
