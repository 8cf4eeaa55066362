"""Positions of former landings and databases, in MySQL's own words: the source reads them as it did."""

import json

import pytest
from menura.landing import LandedPosition, decode_entry, encode_entry

from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    MariadbGtids,
    MysqlGtids,
    from_proto,
    is_file_only,
)
from controlplane_api.documents import ahead_from, position_document, position_from, position_text
from gateway.wire.translation import wire_position

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
#: as format 4 wrote them, and what they were; a log's beginning had neither GTIDs nor a server
FORMER = {
    "mysql": (
        {"gtid_set": f"{UUID}:1-77", "server_uuid": UUID, "file": "binlog.000002", "offset": 1234},
        BinlogPositionKind.MYSQL_GTID,
        BinlogPosition(MysqlGtids.parse(f"{UUID}:1-77"), UUID, "binlog.000002", 1234),
        f"{UUID}:1-77",
    ),
    "mariadb": (
        {"gtid_set": "0-1-77", "server_uuid": "", "file": "mariadb-bin.000002", "offset": 9},
        BinlogPositionKind.MARIADB_GTID,
        BinlogPosition(MariadbGtids.parse("0-1-77"), "", "mariadb-bin.000002", 9),
        "0-1-77",
    ),
    "beginning": (
        {"gtid_set": "", "server_uuid": "", "file": "binlog.000001", "offset": 4},
        BinlogPositionKind.MYSQL_GTID,
        BinlogPosition(MysqlGtids({}), "", "binlog.000001", 4),
        "the log's beginning",
    ),
    "file": (
        {"gtid_set": "", "server_uuid": UUID, "file": "binlog.000002", "offset": 157},
        BinlogPositionKind.FILE,
        BinlogPosition(None, UUID, "binlog.000002", 157),
        "binlog.000002:157",
    ),
}


def entry(position: dict[str, object]) -> bytes:
    """As format 4 wrote it."""
    cut = {
        "tenant": "acme", "source": "shop", "epoch": 1, "cut": 7, "generation": 1, "flavor": "mysql",
        "position": position, "last_gsn": 9, "last_transaction_id": 3, "transaction_count": 1,
        "first_commit_timestamp_us": 0, "last_commit_timestamp_us": 0, "files": [], "events": [], "chunks": [],
        "ahead": [{"position": position, "tables": [["shop", "orders"]]}],
        "started": [{"database": "shop", "table": "items", "position": position, "earlier_rows_missing": ""}],
        "stopped": [{"database": "shop", "table": "notes", "position": position, "code": "C", "message": "m"}],
    }  # fmt: skip
    return json.dumps({"format": 4, "entry": 7, "gateway": "gw", "committed_at_us": 5, "cuts": [cut]}).encode()


@pytest.mark.parametrize("name", FORMER)
def test_landing_when_it_is_of_format_4_then_its_positions_are_read_as_they_were(name: str) -> None:
    former, kind, position, text = FORMER[name]
    (cut,) = decode_entry(entry(former)).cuts
    assert cut.position == cut.ahead[0].position == cut.started[0].position == cut.stopped[0].position
    assert (cut.position.kind, cut.position.text) == ("mysql", text)
    assert from_proto(wire_position(cut.position), kind) == position
    assert is_file_only(wire_position(cut.position)) == (name == "file")
    assert wire_position(cut.position) == position.to_proto(), "a table that goes on from it is known by it"
    again = decode_entry(encode_entry(decode_entry(entry(former))))
    assert again.cuts == (cut,)


@pytest.mark.parametrize("name", FORMER)
def test_database_when_it_has_a_former_document_then_it_is_read_as_the_present_one(name: str) -> None:
    former, _, position, text = FORMER[name]
    sent = position.to_proto()
    assert position_from(former) == LandedPosition(sent.kind, sent.text, sent.token)
    assert position_text(former) == position_text(position_document(position_from(former))) == text
    (ahead,) = ahead_from([{"position": former, "tables": [["shop", "orders"]]}])
    assert ahead.position == position_from(former)
