"""Positions in a server's WAL: their texts, which covers which, and what is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from menura.v1 import changes_pb2

from agent.positions import PositionKind, PositionsUnordered, PositionSyntaxError, least
from agent.sources.postgresql.positions import (
    KIND,
    LastTransaction,
    WalPosition,
    WalPositionKind,
    from_proto,
    lsn_text,
    parse,
    parse_lsn,
)

SYSTEM = "7300000000000000001"
HERE = WalPosition(0x16_B374D848, SYSTEM, 1, 16384)
positions = st.builds(
    WalPosition,
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**64 - 1).map(str),
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**32 - 1),
)


class _Other(PositionKind):
    OTHER = "other"


@given(st.integers(0, 2**64 - 1))
def test_lsn_when_written_then_it_is_read_as_the_same(lsn: int) -> None:
    assert parse_lsn(lsn_text(lsn)) == lsn


@pytest.mark.parametrize("text", ["", "16", "16/", "/16", "16/B374D8480", "g/1", "16/B374D848 x", "-1/0", "1/1/1"])
def test_lsn_when_the_text_is_none_then_says_so(text: str) -> None:
    with pytest.raises(PositionSyntaxError, match="is no LSN"):
        parse_lsn(text)


@given(positions)
def test_position_when_it_has_travelled_then_is_the_same(position: WalPosition) -> None:
    message = position.to_proto()
    assert message.kind == KIND
    assert message.text == str(position)
    assert from_proto(changes_pb2.Position.FromString(message.SerializeToString())) == position


def test_position_when_of_one_log_then_the_later_covers_and_the_earlier_is_met() -> None:
    later = HERE.at(HERE.lsn + 1)
    assert later.covers(HERE)
    assert not HERE.covers(later)
    assert HERE.covers(HERE)
    assert HERE.same_place(HERE.at(HERE.lsn))
    assert not HERE.same_place(later)
    assert least([later, HERE, later]) == HERE
    assert parse(" 16/B374D849 ", HERE) == later


def test_position_when_its_server_was_promoted_then_is_still_comparable() -> None:
    promoted = WalPosition(HERE.lsn + 1, SYSTEM, 2, HERE.database)
    assert promoted.covers(HERE)


@pytest.mark.parametrize("other", [WalPosition(1, "7300000000000000002", 1, 16384), WalPosition(1, SYSTEM, 1, 16385)])
def test_position_when_of_another_server_or_database_then_is_not_comparable(other: WalPosition) -> None:
    assert not HERE.is_comparable(other)
    with pytest.raises(PositionsUnordered):
        HERE.covers(other)
    with pytest.raises(PositionsUnordered):
        HERE.meet(other)


def test_position_when_asked_for_its_kind_then_has_one() -> None:
    assert HERE.is_of(WalPositionKind.LSN)
    assert not HERE.is_of(_Other.OTHER)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        json.dumps({"system": SYSTEM, "timeline": 1}),
        json.dumps({"system": "", "timeline": 1, "database": 16384}),
        json.dumps({"system": "0x1", "timeline": 1, "database": 16384}),
        json.dumps({"system": SYSTEM, "timeline": 0, "database": 16384}),
        json.dumps({"system": SYSTEM, "timeline": 1, "database": 1e999}),
        json.dumps({"system": SYSTEM, "timeline": 1 << 32, "database": 16384}),
    ],
)
def test_position_when_its_token_is_none_then_says_so(token: str) -> None:
    with pytest.raises(PositionSyntaxError):
        from_proto(changes_pb2.Position(kind=KIND, text="0/1", token=token))


def test_position_when_it_is_of_another_kind_of_source_then_says_so() -> None:
    message = HERE.to_proto()
    message.kind = "mysql"
    with pytest.raises(PositionSyntaxError, match="of kind mysql"):
        from_proto(message)


def test_position_when_its_last_transaction_is_known_then_its_token_has_it() -> None:
    last = LastTransaction(80, 120, 7, 1_700_000_000_000_001)
    position = WalPosition(128, "7300000000000000001", 1, 16384).behind(last)
    assert from_proto(position.to_proto()).last == last
    assert position.at(200).last is None


def test_position_when_its_last_transaction_is_behind_it_then_says_so() -> None:
    position = WalPosition(100, "7300000000000000001", 1, 16384).behind(LastTransaction(80, 120, 7, 1))
    with pytest.raises(PositionSyntaxError, match="not before it"):
        from_proto(position.to_proto())
