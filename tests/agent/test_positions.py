"""Positions: text, sets and wire form; the server's own functions are the oracle."""

import json
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from menura.v1.changes_pb2 import Position

from agent.positions import PositionsUnordered, PositionSyntaxError, least
from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    MariadbGtids,
    MysqlGtids,
    from_proto,
    has_file,
    is_file_only,
    log_number,
    moved,
    parse_file_offset,
)
from tests.servers import Server, server

UUIDS = ["3e11fa47-71ca-11e1-9e33-c80aa9429562", "b73b97b8-e58e-11f1-98f2-02fc00000001"]
KEYS = [UUIDS[0], UUIDS[1], f"{UUIDS[0]}:blue", f"{UUIDS[1]}:_x1"]

runs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 60), st.integers(0, 20)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=12,
)
mysql_sets = runs.map(lambda found: MysqlGtids({}).with_runs(found))


def members(gtids: MysqlGtids) -> set[tuple[str, int]]:
    return {(key, n) for key, found in gtids.intervals.items() for first, last in found for n in range(first, last + 1)}


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("mysql", tmp_path_factory.mktemp("mysql")) as running:
        yield running


@given(mysql_sets)
def test_mysql_set_when_printed_and_read_then_is_itself(gtids: MysqlGtids) -> None:
    assert MysqlGtids.parse(str(gtids)) == gtids


@given(mysql_sets, mysql_sets)
def test_mysql_set_operations_when_compared_with_plain_sets_then_agree(left: MysqlGtids, right: MysqlGtids) -> None:
    assert members(left.meet(right)) == members(left) & members(right)
    assert left.covers(right) == (members(right) <= members(left))
    union = left.with_runs((key, *interval) for key, found in right.intervals.items() for interval in found)
    assert members(union) == members(left) | members(right)


@given(mysql_sets, st.sampled_from(KEYS), st.integers(1, 90))
def test_mysql_set_when_asked_for_a_transaction_then_agrees_with_its_members(
    gtids: MysqlGtids, key: str, n: int
) -> None:
    assert gtids.has(f"{key}:{n}") == ((key, n) in members(gtids))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(left=mysql_sets, right=mysql_sets)
def test_mysql_set_when_compared_with_the_server_then_agrees(
    mysql: Server, left: MysqlGtids, right: MysqlGtids
) -> None:
    statement = f"SELECT GTID_SUBSET('{right}', '{left}'), GTID_SUBTRACT('{left}', GTID_SUBTRACT('{left}', '{right}'))"
    covers, shared = mysql.run(statement)[0]
    assert left.covers(right) == bool(covers)
    assert MysqlGtids.parse(str(shared).replace("\n", "")) == left.meet(right)
    assert str(mysql.run(f"SELECT GTID_SUBTRACT('{left}', '')")[0][0]).replace("\n", "") == str(left)


@pytest.mark.parametrize("text", ["x", f"{UUIDS[0]}", f"{UUIDS[0]}:0", f"{UUIDS[0]}:5-3", f"{UUIDS[0]}:1-2-3", "1-2"])
def test_mysql_set_when_text_is_none_then_says_so(text: str) -> None:
    with pytest.raises(PositionSyntaxError):
        MysqlGtids.parse(text)


def test_mysql_set_when_encoded_then_has_the_documented_layout() -> None:
    plain = MysqlGtids.parse(f"{UUIDS[0]}:1-3:5")
    assert plain.encode()[:8] == struct.pack("<Q", 1)
    assert plain.encode()[24:] == struct.pack("<QQQQQ", 2, 1, 4, 5, 6)
    tagged = MysqlGtids.parse(f"{UUIDS[0]}:1:blue:7")
    assert tagged.encode()[:8] == bytes([1, 2, 0, 0, 0, 0, 0, 1])
    assert tagged.encode()[24] == 0
    assert b"\x08blue" in tagged.encode()


@pytest.mark.parametrize("text", ["1-2", "0-1-5,0-1-6", "a-b-c", "0-1-5;1-1-1"])
def test_mariadb_position_when_text_is_none_then_says_so(text: str) -> None:
    with pytest.raises(PositionSyntaxError):
        MariadbGtids.parse(text)


def test_mariadb_position_when_compared_then_goes_by_domain() -> None:
    older, newer = MariadbGtids.parse("0-1-5,1-1-9"), MariadbGtids.parse("0-2-7,1-1-9,2-1-1")
    assert newer.covers(older)
    assert not older.covers(newer)
    assert older.meet(newer) == older
    assert newer.has("0-1-7")
    assert not newer.has("0-1-8")
    assert not newer.has("3-1-1")
    assert str(older.with_runs([("0-3", 6, 8)])) == "0-3-8,1-1-9"


def test_least_when_sets_hold_what_the_other_lacks_then_is_their_intersection() -> None:
    left = BinlogPosition(MysqlGtids.parse(f"{UUIDS[0]}:1-9,{UUIDS[1]}:1-2"), UUIDS[0], "binlog.000002", 40)
    right = BinlogPosition(MysqlGtids.parse(f"{UUIDS[0]}:1-4,{UUIDS[1]}:1-8"), UUIDS[0], "binlog.000001", 90)
    shared = least([left, right])
    assert str(shared) == f"{UUIDS[0]}:1-4,{UUIDS[1]}:1-2"
    assert left.covers(shared)
    assert right.covers(shared)
    assert least([left, left]) is left


def test_file_position_when_compared_then_goes_by_number_not_by_text() -> None:
    older, newer = BinlogPosition(None, "u", "binlog.999999", 900), BinlogPosition(None, "u", "binlog.1000000", 4)
    assert newer.covers(older)
    assert not older.covers(newer)
    assert newer.has_transaction("", "binlog.999999", 900)
    assert not older.has_transaction("", "binlog.999999", 900)
    assert log_number(newer.file) == 1000000
    with pytest.raises(PositionsUnordered):
        older.covers(BinlogPosition(None, "other", "binlog.000001", 4))


def test_position_when_sent_and_read_then_is_itself() -> None:
    for position_kind, gtids in (
        (BinlogPositionKind.MYSQL_GTID, MysqlGtids.parse(f"{UUIDS[0]}:1-9")),
        (BinlogPositionKind.MARIADB_GTID, MariadbGtids.parse("0-1-5")),
        (BinlogPositionKind.FILE, None),
    ):
        position = BinlogPosition(gtids, UUIDS[1], "binlog.000002", 157)
        assert from_proto(position.to_proto(), position_kind) == position
        assert is_file_only(position.to_proto()) == (gtids is None)


def test_position_when_it_is_of_no_source_like_this_then_is_refused() -> None:
    sent = BinlogPosition(MariadbGtids.parse("0-1-5"), "", "binlog.000002", 157).to_proto()
    facts = json.loads(sent.token)
    tokens = ["", "[]", "{}", "[" * 60_000, *(json.dumps({**facts, **odd}) for odd in ODD_FACTS)]
    for changes in ({"kind": "postgresql"}, {"kind": ""}, *({"token": token} for token in tokens)):
        other = Position(**{"kind": sent.kind, "text": sent.text, "token": sent.token, **changes})
        with pytest.raises(PositionSyntaxError):
            from_proto(other, BinlogPositionKind.MARIADB_GTID)
        assert not is_file_only(other)


ODD_FACTS: tuple[dict[str, object], ...] = (
    {"offset": -1}, {"offset": 1 << 63}, {"offset": float("inf")}, {"offset": None},
    {"file": "\ud800"}, {"file": "a\0"},
)  # fmt: skip


def test_position_of_a_table_that_never_began_when_it_is_read_again_then_says_nothing_of_files() -> None:
    assert not is_file_only(BinlogPosition().to_proto())
    assert not has_file(BinlogPosition().to_proto())


def test_position_when_it_is_where_a_log_begins_then_its_text_says_so() -> None:
    sent = BinlogPosition(MysqlGtids({}), UUIDS[0], "binlog.000001", 4).to_proto()
    assert sent.text == "the log's beginning"
    assert from_proto(sent, BinlogPositionKind.MYSQL_GTID) == BinlogPosition(MysqlGtids({}), "", "binlog.000001", 4)


def test_moved_when_transactions_finished_then_holds_them() -> None:
    begin = BinlogPosition(MysqlGtids({}), "", "binlog.000001", 4)
    after = moved(begin, [(UUIDS[0], 1, 3), (UUIDS[0], 4, 4)], UUIDS[0], "binlog.000001", 700)
    assert str(after) == f"{UUIDS[0]}:1-4"
    assert after.offset == 700


@pytest.mark.parametrize(
    "text",
    [
        "binlog.000002",
        "binlog:4",
        "binlog.000002:",
        "binlog.000002:²",
        "binlog.²:4",
        f"binlog.1:{'9' * 5000}",
        f"{UUIDS[0]}:1-4",
        "0-1-5",
        "",
    ],
)
def test_file_offset_when_text_has_another_form_then_is_none(text: str) -> None:
    assert parse_file_offset(text) is None
