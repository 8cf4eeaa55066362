"""Rows that lack columns (`binlog_row_image`), and MariaDB's compressed events: real servers, SELECT as the oracle."""

# ruff: noqa: E501  (SQL)

import random
import zlib

import pyarrow as pa
import pytest
from menura.change_batch import METADATA_WHOLE_ROWS

from agent.sources.mysql.failures import WHOLE_ROWS
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError, Reason
from tests.agent.native.capture import decode_all, logged
from tests.agent.native.mutation import event, packets, payloads, without_checksums
from tests.servers import Server

COLUMNS = ("id", "name", "amount", "note", "extra")
#: what the log does not hold of an inserted row is the column's default
DEFAULTS = {"name": "nobody", "amount": 5, "note": None, "extra": None}
TABLE = (
    "DROP TABLE IF EXISTS part",
    "CREATE TABLE part (id INT PRIMARY KEY, name VARCHAR(20) DEFAULT 'nobody', amount INT DEFAULT 5, note TEXT, extra BLOB)",
)
CHANGES = (
    "INSERT INTO part (id) VALUES (1)",
    "INSERT INTO part (id, name, note) VALUES (2, 'two', 'long'), (3, NULL, NULL)",
    "INSERT INTO part (id, name, amount, note, extra) VALUES (4, 'four', 4, 'n', 'e')",
    "UPDATE part SET amount = amount + 1",
    "UPDATE part SET note = NULL, name = 'x' WHERE id = 2",
    "UPDATE part SET id = 40 WHERE id = 4",
    "INSERT INTO part (id, name) VALUES (1, 'r') ON DUPLICATE KEY UPDATE extra = 'dup'",
    "DELETE FROM part WHERE id = 2",
)


def _is_mariadb(source: Server) -> bool:
    return source.flavor != "mysql"


def _decoder(source: Server, **limits: int) -> BinlogDecoder:
    return BinlogDecoder(mariadb=_is_mariadb(source), checksum=True, next_gsn=1, next_transaction_id=1, **limits)


def _images(source: Server) -> list[str]:
    version = str(source.run("SELECT VERSION()")[0][0]).split(".")
    has_nodup = _is_mariadb(source) and (int(version[0]), int(version[1])) >= (11, 4)
    return ["MINIMAL", "NOBLOB", *(["FULL_NODUP"] if has_nodup else [])]


def _absent(row: dict[str, object], columns: tuple[str, ...] = COLUMNS) -> set[str]:
    bits = row.get("_absent")
    if bits is None:
        return set()
    assert isinstance(bits, bytes)
    assert len(bits) == (len(columns) + 7) // 8
    return {name for number, name in enumerate(columns) if bits[number // 8] >> (number % 8) & 1}


def _state(changes: pa.Table, columns: tuple[str, ...] = COLUMNS) -> dict[object, tuple[object, ...]]:
    """What a reader of the changes makes of them: what a row lacks keeps its value, or is the default when inserted."""
    rows: dict[object, dict[str, object]] = {}
    before: dict[str, object] = {}
    for change in changes.to_pylist():
        lacks = _absent(change, columns)
        assert all(change[name] is None for name in lacks)
        assert "id" not in lacks
        if change["_change_type"] in (1, 3):
            before = rows.pop(change["id"])
            known = {name: change[name] for name in columns if name not in lacks}
            assert known == {name: before[name] for name in known}
        else:
            older = before if change["_change_type"] == 2 else DEFAULTS
            rows[change["id"]] = {name: older[name] if name in lacks else change[name] for name in columns}
    return {key: tuple(row[name] for name in columns) for key, row in rows.items()}


def _selected(source: Server) -> dict[object, tuple[object, ...]]:
    return {row[0]: row for row in source.run("SELECT * FROM t.part")}


@pytest.mark.parametrize("limits", [{}, {"batch_rows": 1}])
def test_changes_of_partial_images_lead_to_the_rows_that_select_gives(source: Server, limits: dict[str, int]) -> None:
    for image in _images(source):
        data = logged(source, *TABLE, f"SET SESSION binlog_row_image = '{image}'", *CHANGES)

        decoded = decode_all(data, mariadb=_is_mariadb(source), decoder=_decoder(source, **limits))

        parts = [pa.record_batch(batch.rows) for batch in decoded.batches]
        changes = pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="default")
        changes.validate(full=True)
        assert _state(changes) == _selected(source), image
        if image != "FULL_NODUP":
            assert any(_absent(row) for row in changes.to_pylist())
            told = [part.schema.field("_absent").metadata for part in parts if "_absent" in part.schema.names]
            assert told[0] == {METADATA_WHOLE_ROWS.encode(): WHOLE_ROWS.encode()}


def test_generated_columns_of_partial_images_lead_to_the_rows_that_select_gives(mysql: Server) -> None:
    """MySQL logs those that changed."""
    columns = ("id", "a", "doubled", "shown")
    for image in _images(mysql):
        data = logged(
            mysql,
            "DROP TABLE IF EXISTS part",
            "CREATE TABLE part (id INT PRIMARY KEY, a INT, doubled INT AS (a * 2) STORED, shown TEXT AS (CONCAT(a, '!')) VIRTUAL)",
            f"SET SESSION binlog_row_image = '{image}'",
            "INSERT INTO part (id, a) VALUES (1, 1), (2, 2), (3, NULL)",
            "UPDATE part SET a = a + 1",
            "UPDATE part SET id = 20 WHERE id = 2",
            "INSERT INTO part (id, a) VALUES (1, 9) ON DUPLICATE KEY UPDATE a = 7",
        )

        assert _state(decode_all(data, mariadb=False).table("part"), columns) == _selected(mysql), image


def test_batch_without_a_partial_row_has_no_column_for_it(source: Server) -> None:
    data = logged(source, *TABLE, *CHANGES[:3])
    assert "_absent" not in decode_all(data, mariadb=_is_mariadb(source)).table("part").column_names


def test_rows_partial_only_in_ignored_columns_are_whole(source: Server) -> None:
    data = logged(source, *TABLE, "SET SESSION binlog_row_image = 'NOBLOB'", *CHANGES)

    decoded = decode_all(data, mariadb=_is_mariadb(source), ignored=["note", "extra"])

    assert "_absent" not in decoded.table("part").column_names
    assert len(decoded.table("part")) > 10


def test_whole_and_partial_rows_share_a_batch(source: Server) -> None:
    data = logged(
        source,
        *TABLE,
        "SET SESSION binlog_row_image = 'FULL'",
        CHANGES[2],
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE part SET amount = 6",
        "SET SESSION binlog_row_image = 'FULL'",
        "UPDATE part SET amount = 7",
    )

    rows = decode_all(data, mariadb=_is_mariadb(source)).table("part").to_pylist()

    assert [bool(_absent(row)) for row in rows] == [False, True, True, False, False]
    assert _absent(rows[1]) == {"name", "amount", "note", "extra"}
    assert _absent(rows[2]) == {"name", "note", "extra"}
    assert rows[2]["id"] == 4


def test_row_inserted_without_a_column_is_an_error_that_names_the_setting(mysql: Server) -> None:
    """MySQL logs no byte for it; how many rows an event without a byte holds can not be told."""
    data = logged(
        mysql,
        "DROP TABLE IF EXISTS bare",
        "CREATE TABLE bare (a INT, b TEXT)",
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "INSERT INTO bare () VALUES ()",
    )

    with pytest.raises(DecodeError, match=r"t\.bare: .*binlog_row_image to FULL") as caught:
        decode_all(data, mariadb=False)

    assert caught.value.table_id > 0


def test_value_that_an_after_image_lacks_is_noted_as_unrepresentable_like_that_of_its_before_image(
    source: Server,
) -> None:
    for image in _images(source):
        data = logged(
            source,
            "DROP TABLE IF EXISTS zero",
            "CREATE TABLE zero (id INT PRIMARY KEY, day DATE, note TEXT, n INT)",
            f"SET SESSION sql_mode = '', SESSION binlog_row_image = '{image}'",
            "INSERT INTO zero VALUES (1, '0000-00-00', 'x', 1)",
            "UPDATE zero SET n = 2",
        )
        rows = decode_all(data, mariadb=_is_mariadb(source)).table("zero").to_pylist()
        if image != "MINIMAL":
            assert rows[2]["_unrepresentable"] == '{"day":"0000-00-00"}'
        assert rows[2]["n"] == 2


# --- REPLACE: MariaDB logs an update that lacks what became a default, as if it had not changed


@pytest.fixture
def mariadb(source: Server) -> Server:
    if source.flavor == "mysql":
        pytest.skip("MySQL logs all columns of a REPLACE")
    return source


_SHOP = (
    "DROP TABLE IF EXISTS shop, audit",
    "CREATE TABLE shop (id INT PRIMARY KEY, amount INT DEFAULT 5, note TEXT)",
    "CREATE TABLE audit (id INT)",
    "INSERT INTO shop VALUES (1, 7, 'old'), (2, 8, 'older')",
)
_CERTAIN = (
    "UPDATE shop SET amount = 9 WHERE id = 1",
    "/* a comment */ -- and another\n# one more\n update shop SET amount = 9, id = 3 WHERE id = 1",
    "INSERT INTO shop (id, amount) VALUES (1, 1) ON DUPLICATE KEY UPDATE amount = 9",
    "EXECUTE IMMEDIATE 'UPDATE shop SET amount = 9, id = 3 WHERE id = 1'",
    "BEGIN NOT ATOMIC UPDATE shop SET amount = 9, id = 3 WHERE id = 1; END",
)
_UNCERTAIN = (
    "REPLACE INTO shop (id) VALUES (1)",
    "/*! REPLACE */ INTO shop (id) VALUES (1)",
    "EXECUTE IMMEDIATE 'REPLACE INTO shop (id) VALUES (1)'",
    "BEGIN NOT ATOMIC REPLACE INTO shop (id) VALUES (1); END",
    "BEGIN NOT ATOMIC UPDATE shop SET amount = 3 WHERE id = 2; REPLACE INTO shop (id) VALUES (1); END",
    "INSERT INTO audit VALUES (1)",
)
_TRIGGER = "CREATE TRIGGER audited AFTER INSERT ON audit FOR EACH ROW REPLACE INTO shop (id) VALUES (NEW.id)"


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("statement", _CERTAIN)
def test_update_that_can_not_be_a_replace_leaves_alone_what_it_lacks(
    mariadb: Server, statement: str, image: str
) -> None:
    data = logged(mariadb, *_SHOP, f"SET SESSION binlog_row_image = '{image}'", statement)

    rows = decode_all(data, mariadb=True).table("shop").to_pylist()

    assert (rows[-1]["amount"], _absent(rows[-1], ("id", "amount", "note"))) == (9, {"note"})
    assert mariadb.run("SELECT note FROM t.shop WHERE amount = 9")[0][0] == "old"


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("statement", _UNCERTAIN)
def test_update_that_may_be_a_replace_is_an_error_that_names_the_setting(
    mariadb: Server, statement: str, image: str
) -> None:
    data = logged(mariadb, *_SHOP, _TRIGGER, f"SET SESSION binlog_row_image = '{image}'", statement)

    with pytest.raises(DecodeError, match=r"t\.shop: .*REPLACE.*binlog_row_image to FULL"):
        decode_all(data, mariadb=True)

    assert mariadb.run("SELECT note FROM t.shop WHERE id = 1") == [(None,)]
    without = decode_all(data, mariadb=True, ignored=["amount", "note"])
    assert len(without.table("shop")) >= 4


def test_statement_without_annotation_is_no_proof(mariadb: Server) -> None:
    data = logged(
        mariadb,
        *_SHOP,
        "SET SESSION binlog_annotate_row_events = OFF, SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE shop SET amount = 8 WHERE id = 1",
        _CERTAIN[2],
    )

    with pytest.raises(DecodeError, match=r"t\.shop: .*REPLACE"):
        decode_all(data, mariadb=True)


def test_damaged_partial_rows_give_an_answer_or_a_decode_error(source: Server) -> None:
    damaged_answers = 0
    chance = random.Random(5)
    for image in _images(source):
        data = without_checksums(logged(source, *TABLE, f"SET SESSION binlog_row_image = '{image}'", *CHANGES))
        whole = list(payloads(data))
        rows = [
            number
            for number, payload in enumerate(whole)
            if len(payload) > 20 and 23 <= payload[5] <= 32 and payload[5] not in (27, 28, 29)
        ]
        for _ in range(700):
            damaged = list(whole)
            number = chance.choice(rows)
            payload = bytearray(damaged[number])
            payload[chance.randrange(26, len(payload))] = chance.choice([0, 1, 0x7F, 0xFC, 0xFF, chance.randrange(256)])
            damaged[number] = bytes(payload)
            decoder = BinlogDecoder(mariadb=_is_mariadb(source), checksum=False, next_gsn=1, next_transaction_id=1)
            try:
                decoded = decode_all(b"".join(map(packets, damaged)), mariadb=_is_mariadb(source), decoder=decoder)
            except DecodeError:
                batches = decoder.take_batches()
            else:
                damaged_answers += 1
                batches = decoded.batches
            for batch in batches:
                pa.record_batch(batch.rows).validate(full=True)
    assert damaged_answers > 50


# --- MariaDB's log_bin_compress

COMPRESSED = (
    "DROP TABLE IF EXISTS part, orders",
    "CREATE TABLE part (id INT PRIMARY KEY, name VARCHAR(20) DEFAULT 'nobody', amount INT DEFAULT 5, note LONGTEXT, extra BLOB)",
    f"CREATE TABLE orders (id INT PRIMARY KEY COMMENT '{'c' * 900}')",
    "INSERT INTO part (id, note) VALUES (1, REPEAT('one', 100)), (2, REPEAT('two', 400000)), (3, 'x')",
    "UPDATE part SET note = CONCAT(note, '!'), amount = id",
    "DELETE FROM part WHERE id = 2",
)


@pytest.fixture
def compressing(source: Server) -> Server:
    if source.flavor == "mysql":
        pytest.skip("MySQL has no log_bin_compress")
    source.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    return source


@pytest.mark.parametrize("limits", [{}, {"batch_rows": 1}, {"pending_bytes": 100}])
def test_compressed_events_give_the_rows_and_statements_of_plain_ones(
    compressing: Server, limits: dict[str, int]
) -> None:
    data = logged(compressing, *COMPRESSED)
    compressing.run("SET GLOBAL log_bin_compress = OFF")
    plain = decode_all(logged(compressing, *COMPRESSED), mariadb=True)

    decoded = decode_all(data, mariadb=True, decoder=_decoder(compressing, **limits))

    types = {payload[5] for payload in payloads(data) if len(payload) > 20}
    assert types >= {165, 166, 167, 168}
    assert decoded.table("part").drop_columns("_transaction").equals(plain.table("part").drop_columns("_transaction"))
    texts = [item.body.partition(b"\0t\0")[2] for item in decoded.events if item.type == binlog.QUERY_EVENT]
    assert any(b"c" * 900 in text for text in texts)
    assert {item.type for item in decoded.events} == {item.type for item in plain.events}
    assert decoded.reasons.count(Reason.BATCH_FULL) > 3 or not limits


def test_compressed_events_with_partial_images_are_read(compressing: Server) -> None:
    data = logged(compressing, *TABLE, "SET SESSION binlog_row_image = 'MINIMAL'", *CHANGES)
    compressing.run("SET GLOBAL log_bin_compress = OFF")

    assert _state(decode_all(data, mariadb=True).table("part")) == _selected(compressing)


def test_compressed_events_of_version_2_give_the_rows_of_version_1(compressing: Server) -> None:
    """No MariaDB writes them; the rows are a real server's, behind the head that version 2 of a rows event has."""
    data = logged(compressing, *COMPRESSED)
    compressing.run("SET GLOBAL log_bin_compress = OFF")
    anew = b""
    for payload in payloads(data):
        type_, body = payload[5:6], payload[20:-4]
        if payload[:1] == b"\0" and type_ in _VERSION_2:
            anew += event(
                _VERSION_2[type_], body[:8] + b"\2\0" + body[8:], timestamp=int.from_bytes(payload[1:5], "little")
            )
        else:
            anew += packets(payload)

    decoded = decode_all(anew, mariadb=True)

    assert {payload[5] for payload in payloads(anew) if len(payload) > 20} >= {169, 170, 171}
    assert decoded.table("part").equals(decode_all(data, mariadb=True).table("part"))


_VERSION_2 = {
    bytes([binlog.WRITE_ROWS_COMPRESSED_EVENT_V1]): binlog.WRITE_ROWS_COMPRESSED_EVENT,
    bytes([binlog.UPDATE_ROWS_COMPRESSED_EVENT_V1]): binlog.UPDATE_ROWS_COMPRESSED_EVENT,
    bytes([binlog.DELETE_ROWS_COMPRESSED_EVENT_V1]): binlog.DELETE_ROWS_COMPRESSED_EVENT,
}


def _query(text: bytes, type_: int = binlog.QUERY_COMPRESSED_EVENT) -> bytes:
    return event(type_, bytes(8) + b"\1" + bytes(4) + b"t\0" + text)


def _compressed(plain: bytes, announced: int | None = None) -> bytes:
    return b"\x84" + (len(plain) if announced is None else announced).to_bytes(4, "big") + zlib.compress(plain)


GTID = event(binlog.GTID_EVENT, (7).to_bytes(8, "little") + bytes(4) + b"\1" + bytes(6))


def test_compressed_begin_and_commit_are_understood() -> None:
    decoder = BinlogDecoder(mariadb=True, checksum=True, next_gsn=1, next_transaction_id=1)

    decode_all(GTID + _query(_compressed(b"BEGIN")), mariadb=True, decoder=decoder)
    assert decoder.in_transaction
    decode_all(_query(_compressed(b"COMMIT")), mariadb=True, decoder=decoder)

    assert (decoder.in_transaction, decoder.transactions) == (False, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "without their head"),
        (b"SELECT 1", "without their head"),
        (b"\x94" + bytes(4), "compression that is not known"),
        (b"\x80", "without their length"),
        (b"\x85" + bytes(9), "without their length"),
        (b"\x84\0\0", "without their length"),
        (b"\x81\0", "impossible length"),
        (b"\x84\xff\xff\xff\xff", "impossible length"),
        (b"\x84\0\0\0\1nothing", "zlib can't"),
        (_compressed(b"text", 3), "another length"),
        (_compressed(b"text", 5), "another length"),
        (_compressed(b"text")[:-1], "another length"),
        (_compressed(b"text") + b"x", "another length"),
        (_compressed(bytes(1 << 20), 1 << 30), "another length"),
    ],
)
def test_broken_compression_is_a_decode_error_that_says_why(text: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_all(GTID + _query(text), mariadb=True)
