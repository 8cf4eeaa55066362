"""Framing, transactions and tables: real logs of both servers, and packets made by hand where no server makes them."""

# ruff: noqa: E501  (SQL)

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError, Reason, UnsupportedColumn
from tests.agent.native.capture import decode_all, dump, handle, logged
from tests.agent.native.mutation import event, packets, payloads, without_checksums
from tests.e2e import every_type
from tests.servers import Server, server


def _decoder(*, mariadb: bool = False, checksum: bool = True, **limits: int) -> BinlogDecoder:
    return BinlogDecoder(mariadb=mariadb, checksum=checksum, next_gsn=1, next_transaction_id=1, **limits)


def _is_mariadb(source: Server) -> bool:
    return source.flavor == "mariadb"


SHOP = (
    "DROP TABLE IF EXISTS orders, audit, stock",
    "CREATE TABLE orders (id INT PRIMARY KEY, item VARCHAR(20), amount INT)",
    "CREATE TABLE stock (item VARCHAR(20) PRIMARY KEY, amount INT)",
    "CREATE TABLE audit (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(60))",
    "CREATE TRIGGER noted AFTER UPDATE ON orders FOR EACH ROW INSERT INTO audit (note) VALUES (CONCAT('order ', NEW.id))",
    "INSERT INTO orders VALUES (1, 'nail', 10), (2, 'nut', 20), (3, 'nail', 30)",
    "INSERT INTO stock VALUES ('nail', 100), ('nut', 100)",
    "UPDATE orders, stock SET stock.amount = stock.amount - orders.amount, orders.amount = 0 WHERE orders.item = stock.item",
    "BEGIN",
    "DELETE FROM orders WHERE id = 3",
    "INSERT INTO audit (note) VALUES ('done')",
    "COMMIT",
)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_stream_when_cut_into_odd_chunks_gives_the_same_rows(source: Server, chunk: int) -> None:
    data = logged(source, *SHOP)

    decoded = decode_all(data, mariadb=_is_mariadb(source), chunk=chunk)

    orders = [(row["_change_type"], row["id"], row["amount"]) for row in decoded.table("orders").to_pylist()]
    assert sorted(orders[3:-1]) == sorted([(1, 1, 10), (2, 1, 0), (1, 2, 20), (2, 2, 0), (1, 3, 30), (2, 3, 0)])
    assert orders[:3] == [(0, 1, 10), (0, 2, 20), (0, 3, 30)]
    assert orders[-1] == (3, 3, 0)
    assert decoded.table("audit")["note"].to_pylist()[-1] == "done"
    assert sorted(decoded.table("audit")["note"].to_pylist()[:-1]) == ["order 1", "order 2", "order 3"]
    assert sorted(decoded.table("stock").to_pylist()[-1].items())[-1][1] in ("nail", "nut")


def test_gsn_and_transactions_over_several_tables_are_those_of_the_log(source: Server) -> None:
    data = logged(source, *SHOP)
    decoder = _decoder(mariadb=_is_mariadb(source))

    decoded = decode_all(data, mariadb=_is_mariadb(source), decoder=decoder)

    gsns = [gsn for name in ("orders", "audit", "stock") for gsn in decoded.table(name)["_gsn"].to_pylist()]
    assert sorted(gsns) == list(range(1, decoder.next_gsn))
    assert decoder.rows == len(gsns)
    orders, audit = decoded.transactions("orders"), decoded.transactions("audit")
    assert [row["_transaction_id"] for row in orders] == sorted({row["_transaction_id"] for row in orders})
    assert orders[-1] == audit[-1]
    assert len(orders) == 3
    assert len(audit) == 2
    last = decoded.table("orders").to_pylist()[-1]
    assert last["_transaction"] == 2
    runs = decoder.take_gtids()
    assert sum(last - first + 1 for _, first, last in runs) == decoder.transactions == decoder.next_transaction_id - 1
    origin, _, number = runs[-1]
    assert orders[-1]["_position"] == (f"{origin}-{number}" if _is_mariadb(source) else f"{origin}:{number}")
    executed = source.run("SELECT @@gtid_binlog_pos" if _is_mariadb(source) else "SELECT @@gtid_executed")[0][0]
    assert str(executed).replace("\n", "").endswith(str(number))
    transactions, first_us, last_us = decoder.take_times()
    assert transactions == decoder.transactions
    now_us = int(float(str(source.run("SELECT UNIX_TIMESTAMP(NOW(6)) * 1000000")[0][0])))
    assert now_us - 120_000_000 < first_us <= last_us <= now_us
    assert decoder.take_times() == (0, 0, 0)
    assert not decoder.in_transaction
    assert decoder.gtid == ""


def test_stops_at_a_transactions_begin_and_end_when_asked(source: Server) -> None:
    data = logged(source, *SHOP)
    decoder = _decoder(mariadb=_is_mariadb(source))
    decoder.stop_at_transaction_begin = decoder.stop_at_transaction_end = True
    begun, ended = [], []
    space = decoder.writable()
    space[: len(data)] = data
    decoder.received(len(data))
    while (reason := decoder.decode()) is not Reason.END_OF_STREAM:
        if reason is Reason.EVENT:
            handle(decoder, decoder.event, mariadb=_is_mariadb(source))
        elif reason is Reason.TRANSACTION_BEGIN:
            assert decoder.in_transaction
            begun.append(decoder.gtid)
        elif reason is Reason.TRANSACTION_END:
            assert not decoder.in_transaction
            ended.append((decoder.next_transaction_id, decoder.transaction_end_offset))

    assert len(set(begun)) == len(begun) == decoder.transactions
    assert [number for number, _ in ended] == sorted({number for number, _ in ended})
    assert len(ended) >= 4  # DDL ends without a stop of its own
    assert decoder.transaction_end_offset == max(offset for _, offset in ended) > 0


def test_batches_when_full_inside_an_event_go_on_with_its_next_row(source: Server) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS many",
        "CREATE TABLE many (id INT PRIMARY KEY, note VARCHAR(50), day DATE)",
        "INSERT INTO many SELECT seq.n, IF(seq.n % 3, REPEAT('é', seq.n % 40), NULL), '2024-01-01' FROM"
        " (SELECT a.d + 10 * b.d + 100 * c.d AS n FROM"
        " (SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7) a,"
        " (SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7) b,"
        " (SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7) c) seq",
        "UPDATE many SET note = CONCAT(note, '!')",
    )

    whole = decode_all(data, mariadb=_is_mariadb(source)).table("many")
    for limits in ({"batch_rows": 37}, {"pending_bytes": 1500}, {"batch_rows": 1}):
        decoded = decode_all(
            data, mariadb=_is_mariadb(source), decoder=_decoder(mariadb=_is_mariadb(source), **limits), chunk=500
        )
        parts = decoded.table("many")
        assert parts.drop_columns(["_transaction"]).equals(whole.drop_columns(["_transaction"]))
        assert all(batch.row_count == batch.last_gsn - batch.first_gsn + 1 for batch in decoded.batches)
        assert len(decoded.batches) > 20
        assert all(pa.record_batch(batch.transactions).num_rows <= 2 for batch in decoded.batches)
    assert whole["note"].null_count > 0


def test_ignored_columns_and_inactive_tables_leave_nothing_in_a_batch(source: Server) -> None:
    data = logged(source, *SHOP)

    decoded = decode_all(data, mariadb=_is_mariadb(source), ignored=["item"])
    nothing = decode_all(data, mariadb=_is_mariadb(source), database="other")

    assert "item" not in decoded.table("orders").column_names
    assert decoded.table("orders")["amount"].to_pylist()[0] == 10
    assert not nothing.batches


def test_columns_of_a_plan_carry_their_source_type_and_key(source: Server) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS keyed",
        "CREATE TABLE keyed (a INT UNSIGNED, b VARCHAR(9) CHARACTER SET latin1, c DECIMAL(5,2), PRIMARY KEY (b, a))",
        "INSERT INTO keyed VALUES (1, 'x', 1.5)",
    )

    schema = decode_all(data, mariadb=_is_mariadb(source)).table("keyed").schema

    assert schema.field("a").metadata == {b"menura.source_type": b"int unsigned", b"menura.key": b"2"}
    assert schema.field("b").metadata == {b"menura.source_type": b"varchar charset latin1", b"menura.key": b"1"}
    assert schema.field("c").metadata == {b"menura.source_type": b"decimal(5,2)"}
    assert schema.field("c").type == pa.decimal128(5, 2)
    assert schema.names[:3] == ["_change_type", "_gsn", "_transaction"]
    assert schema.names[-1] == "_unrepresentable"


def test_event_above_16_mib_comes_in_continued_packets_and_is_read(source: Server) -> None:
    size = 20_000_000
    data = logged(
        source,
        "DROP TABLE IF EXISTS big",
        "CREATE TABLE big (id INT PRIMARY KEY, b LONGBLOB)",
        f"INSERT INTO big VALUES (1, REPEAT('x', {size}))",
        "INSERT INTO big VALUES (2, 'after')",
    )

    for chunk in (1 << 30, 65_521):
        rows = decode_all(data, mariadb=_is_mariadb(source), chunk=chunk).table("big").to_pylist()
        assert [(row["id"], len(row["b"])) for row in rows] == [(1, size), (2, 5)]


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_an_after_image_when_its_large_before_image_was_taken_already_has_the_values_that_it_lacks(
    mysql: Server, image: str
) -> None:
    kept, old, new = ((size << 20) * letter for size, letter in ((10, b"k"), (8, b"o"), (9, b"n")))
    data = logged(
        mysql,
        "DROP TABLE IF EXISTS halves",
        "CREATE TABLE halves (id INT, kept LONGBLOB, changed LONGBLOB)",
        f"INSERT INTO halves VALUES (1, REPEAT('k', {len(kept)}), REPEAT('o', {len(old)})), (2, 'k', 'o')",
        f"SET SESSION binlog_row_image = '{image}'",
        f"UPDATE halves SET changed = REPEAT('n', {len(new)}) WHERE id = 1",
        "SET SESSION binlog_row_image = 'FULL'",
    )

    decoded = decode_all(data, mariadb=False)

    rows = decoded.table("halves").to_pylist()
    assert [row["_change_type"] for row in rows] == [0, 0, 1, 2]
    assert [(row["kept"], row["changed"]) for row in rows[2:]] == [(kept, old), (kept, new)]
    assert decoded.batches[-1].row_count == 1


def _large_rows(table_id: int, *sizes: int) -> Iterator[bytes]:
    """The packets of one WRITE_ROWS event with a LONGBLOB of each size, made as they are asked for."""
    rows = sum(1 + 4 + 4 + size for size in sizes)
    body = table_id.to_bytes(6, "little") + b"\1\0" + b"\2\0" + b"\2\3"
    size = 19 + len(body) + rows
    head = bytes(4) + bytes([binlog.WRITE_ROWS_EVENT]) + bytes(4) + size.to_bytes(4, "little") + bytes(6)
    waiting = bytearray(b"\0" + head + body)
    for number, value in enumerate(sizes):
        waiting += b"\0" + number.to_bytes(4, "little") + value.to_bytes(4, "little")
        for at in range(0, value, 1 << 20):
            waiting += bytes([number]) * min(1 << 20, value - at)
            while len(waiting) >= 0xFFFFFF:
                yield b"\xff\xff\xff\0" + waiting[:0xFFFFFF]
                del waiting[:0xFFFFFF]
    yield len(waiting).to_bytes(3, "little") + b"\0" + waiting


def _feed(decoder: BinlogDecoder, data: bytes) -> Iterator[Reason]:
    at = 0
    while at < len(data):
        space = decoder.writable()
        size = min(len(space), len(data) - at)
        space[:size] = data[at : at + size]
        del space
        decoder.received(size)
        at += size
        while (reason := decoder.decode()) is not Reason.NEED_BYTES:
            yield reason


def _lengths(decoder: BinlogDecoder) -> list[int]:
    return [len(value.as_buffer()) for batch in decoder.take_batches() for value in pa.record_batch(batch.rows)["b"]]


def test_event_of_1_gib_is_read_and_a_value_that_no_batch_holds_is_an_error(mysql: Server) -> None:
    data = without_checksums(
        logged(
            mysql,
            "DROP TABLE IF EXISTS large",
            "CREATE TABLE large (id INT, b LONGBLOB)",
            "INSERT INTO large VALUES (0, '')",
        )
    )
    announced = list(payloads(data))
    map_at = next(
        at for at, payload in enumerate(announced) if len(payload) > 20 and payload[5] == binlog.TABLE_MAP_EVENT
    )
    decoder = _decoder(checksum=False)
    decode_all(b"".join(map(packets, announced[: map_at + 1])), mariadb=False, decoder=decoder)
    table_id = int.from_bytes(announced[map_at][20:26], "little")
    sizes = [60 << 20] * 17 + [3 << 20]
    found = []

    for packet in _large_rows(table_id, *sizes):
        for reason in _feed(decoder, packet):
            assert reason is Reason.BATCH_FULL
            found += _lengths(decoder)
    found += _lengths(decoder)

    assert sum(sizes) == (1 << 30) - (1 << 20)
    assert found == sizes
    assert len(decoder.writable()) <= 1 << 20
    decode_all(packets(announced[map_at]), mariadb=False, decoder=decoder)
    with pytest.raises(DecodeError, match=r"t\.large, column b: a value larger than 240 MiB"):
        for packet in _large_rows(table_id, (240 << 20) + 1):
            list(_feed(decoder, packet))


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_payload_at_the_edge_of_a_packet_is_put_together(extra: int) -> None:
    body = bytes(0xFFFFFF - 1 - 19 - 4 + extra)
    data = event(binlog.ROWS_QUERY_LOG_EVENT, body) + event(binlog.STOP_EVENT, b"")

    decoded = decode_all(data, mariadb=False, chunk=1_000_003)

    assert [(item.type, len(item.body)) for item in decoded.events] == [
        (binlog.ROWS_QUERY_LOG_EVENT, len(body)),
        (binlog.STOP_EVENT, 0),
    ]


def test_error_packet_is_returned_with_code_state_and_message() -> None:
    decoder = _decoder()
    data = packets(b"\xff" + (1236).to_bytes(2, "little") + b"#HY000Could not find first log file")
    decoder.writable()[: len(data)] = data
    decoder.received(len(data))

    assert decoder.decode() is Reason.ERROR_PACKET
    assert decoder.error_packet == (1236, "HY000", "Could not find first log file")


def test_event_with_a_wrong_checksum_is_an_error(source: Server) -> None:
    data = bytearray(logged(source, *SHOP))
    at = data.rindex(b"done")
    data[at] ^= 1

    with pytest.raises(DecodeError, match="checksum") as caught:
        decode_all(bytes(data), mariadb=_is_mariadb(source))

    assert (caught.value.log_pos > 0) is (source.version != "11.8")


def test_rows_of_a_table_that_was_not_announced_are_an_error(source: Server) -> None:
    data = logged(source, *SHOP)
    kept = [p for p in payloads(data) if p[:1] != b"\0" or p[5] != binlog.TABLE_MAP_EVENT]

    with pytest.raises(DecodeError, match="has not announced") as caught:
        decode_all(b"".join(map(packets, kept)), mariadb=_is_mariadb(source))

    assert caught.value.table_id > 0


def test_events_out_of_order_are_errors() -> None:
    for data, why in (
        (event(binlog.XID_EVENT, bytes(8)), "not begun"),
        (event(binlog.GTID_EVENT, b"\1" + bytes(12)) * 2, "before the one before it has ended"),
        (event(binlog.GTID_EVENT, bytes(13)), "no number"),
        (event(binlog.GTID_LOG_EVENT, bytes(10)), "cut off"),
        (event(binlog.QUERY_EVENT, bytes(12)), "before its text"),
        (event(binlog.QUERY_EVENT, bytes(8) + b"\xff" + bytes(5)), "before its text"),
        (packets(b"\1"), "neither an event"),
        (packets(b""), "empty packet"),
        (packets(b"\0" + bytes(10)), "shorter than its header"),
        (packets(b"\0" + bytes(30)), "size is not that of its packet"),
    ):
        with pytest.raises(DecodeError, match=why):
            decode_all(data, mariadb=True)


def test_position_without_gtid_is_file_and_offset_of_the_transactions_begin(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("plain") / "server"
    with server("mysql", folder, gtid_mode="OFF", enforce_gtid_consistency="OFF") as plain:
        plain.run("CREATE DATABASE t", "CREATE TABLE t.a (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
        file = str(plain.run("SHOW BINARY LOGS")[-1][0])
        plain.run("INSERT INTO t.a VALUES (1)", "INSERT INTO t.a VALUES (2)")
        data = dump(plain, file)
        listed = plain.run(f"SHOW BINLOG EVENTS IN '{file}'")
    begins = [f"{file}:{row[1]}" for row in listed if row[2] == "Anonymous_Gtid"]
    decoder = _decoder()

    decoded = decode_all(data, mariadb=False, decoder=decoder)

    assert [row["_position"] for row in decoded.transactions("a")] == begins
    assert decoder.take_gtids() == []
    assert decoder.transaction_end_offset == listed[-1][4]


def test_tagged_gtid_is_read_like_any_other(mysql: Server) -> None:
    data = logged(
        mysql,
        "DROP TABLE IF EXISTS tagged",
        "CREATE TABLE tagged (id INT PRIMARY KEY)",
        "SET gtid_next = 'AUTOMATIC:shop'",
        "INSERT INTO tagged VALUES (1)",
        "INSERT INTO tagged VALUES (2)",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO tagged VALUES (3)",
    )
    decoder = _decoder()

    decoded = decode_all(data, mariadb=False, decoder=decoder)

    uuid = str(mysql.run("SELECT @@server_uuid")[0][0])
    positions = [str(row["_position"]) for row in decoded.transactions("tagged")]
    assert positions[:2] == [f"{uuid}:shop:1", f"{uuid}:shop:2"]
    assert positions[2].startswith(f"{uuid}:") and "shop" not in positions[2]
    assert (f"{uuid}:shop", 1, 2) in decoder.take_gtids()


def test_damaged_events_give_an_answer_or_a_decode_error(source: Server) -> None:
    """A short fuzz, the same in every run: bytes flipped, cut, doubled, lengths and counts replaced by extremes."""
    names = ", ".join(f"`{name}`" for name, _, _ in every_type.COLUMNS)
    columns = ", ".join(f"`{name}` {kind}{'' if ' NULL' in kind else ' NULL'}" for name, kind, _ in every_type.COLUMNS)
    values = ", ".join(
        values[-1] if len(values[-1]) < 40 and "REPEAT" not in values[-1] else values[0]
        for _, _, values in every_type.COLUMNS
    )
    data = logged(
        source,
        "DROP TABLE IF EXISTS hurt",
        f"CREATE TABLE hurt (id INT PRIMARY KEY, {columns})",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"INSERT IGNORE INTO hurt (id, {names}) VALUES (1, {values}), (2, {values})",
        "UPDATE hurt SET id = id + 10",
        "DELETE FROM hurt WHERE id = 11",
    )
    whole = [packets(payload) for payload in payloads(without_checksums(data))]
    chance = random.Random(3)
    answers = errors = 0
    for _ in range(3000):
        damaged = list(whole)
        for _ in range(chance.choice([1, 1, 2, 5])):
            place = chance.randrange(3, len(damaged) - 1)
            damaged[place] = _damaged(damaged[place], chance)
        decoder = _decoder(mariadb=_is_mariadb(source), checksum=False)
        try:
            decoded = decode_all(b"".join(damaged), mariadb=_is_mariadb(source), decoder=decoder)
        except (DecodeError, UnsupportedColumn, ValueError, IndexError) as error:
            errors += isinstance(error, DecodeError)
            decoded_batches = decoder.take_batches()
        else:
            answers += 1
            decoded_batches = decoded.batches
        for batch in decoded_batches:
            pa.record_batch(batch.rows).validate(full=True)
    assert answers > 100
    assert errors > 100


def _damaged(packet: bytes, chance: random.Random) -> bytes:
    payload = bytearray(packet[4:])
    if len(payload) < 2:
        return packet
    at = chance.randrange(1, max(2, len(payload)))
    kind = chance.randrange(5)
    if kind == 0:
        payload[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        payload[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
    elif kind == 2:
        del payload[at : at + chance.randrange(1, 20)]
    elif kind == 3:
        payload[at:at] = payload[max(0, at - 9) : at]
    else:
        size = min(4, len(payload) - at)
        payload[at : at + size] = b"\xff" * size
    if len(payload) >= 20 and chance.random() < 0.9:  # else the header is refused, and nothing more is learnt
        payload[10:14] = (len(payload) - 1).to_bytes(4, "little")
    return packets(bytes(payload))
