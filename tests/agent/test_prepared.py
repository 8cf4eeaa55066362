"""The file that remembers where XA transactions were prepared: what holds after a kill, a gap, a broken file."""

from pathlib import Path

import pytest

from agent.errors import StateFolderUnusable
from agent.sources.mysql.log.xid import Xid
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, MysqlGtids
from agent.sources.mysql.stream.prepared import FORMAT, KEPT_CUTS, Group, PreparedFile

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FIRST, SECOND = Xid(1, b"\0first", b""), Xid(2**32 - 1, b"", b"second\xff")


def at(last: int) -> BinlogPosition:
    """After the transactions 1 to `last`."""
    return BinlogPosition(MysqlGtids.parse(f"{UUID}:1-{last}"), UUID, "binlog.000001", last * 100)


def group(number: int) -> Group:
    return Group(f"{UUID}:{number}", UUID, "binlog.000001", number * 100)


@pytest.fixture
def file(tmp_path: Path) -> PreparedFile:
    """Prepared at 10 and 20, the first ended by 25; read up to 30."""
    opened = PreparedFile(tmp_path, "shop")
    opened.begin(at(5), BinlogPositionKind.MYSQL_GTID)
    opened.record(at(22), 1, {FIRST: group(10), SECOND: group(20)}, {})
    opened.record(at(30), 2, {}, {FIRST: group(25)})
    return opened


@pytest.mark.parametrize(
    ("start", "open_there"),
    [
        (at(30), {SECOND: group(20)}),
        (at(24), {FIRST: group(10), SECOND: group(20)}),
        (at(15), {FIRST: group(10)}),
        (at(9), {}),
        (at(31), {}),  # something may have ended unseen
        (BinlogPosition(None, UUID, "binlog.000001", 3000), {SECOND: group(20)}),
        (BinlogPosition(None, "another server", "binlog.000001", 3000), {}),
    ],
)
def test_begin_when_cuts_were_not_committed_then_knows_what_is_open_there(
    file: PreparedFile, start: BinlogPosition, open_there: dict[Xid, Group]
) -> None:
    position_kind = BinlogPositionKind.MYSQL_GTID if start.gtids is not None else BinlogPositionKind.FILE
    assert file.begin(start, position_kind) == open_there
    assert file.begin(start, position_kind) == open_there
    file.close()


def test_record_when_a_name_is_used_again_then_the_last_place_counts(file: PreparedFile) -> None:
    file.record(at(40), 3, {FIRST: group(35)}, {SECOND: group(38)})
    assert file.begin(at(40), BinlogPositionKind.MYSQL_GTID) == {FIRST: group(35)}
    file.close()


def test_record_when_many_cuts_have_gone_by_then_what_ended_is_forgotten(file: PreparedFile) -> None:
    file.record(at(40), 3 + KEPT_CUTS, {}, {})
    assert file.begin(at(24), BinlogPositionKind.MYSQL_GTID) == {SECOND: group(20)}
    file.close()


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + bytes(4096)])
def test_open_when_the_file_is_broken_then_is_begun_anew(file: PreparedFile, tmp_path: Path, content: bytes) -> None:
    file.close()
    path = tmp_path / "shop.prepared.sqlite"
    path.write_bytes(content)
    again = PreparedFile(tmp_path, "shop")
    assert again.begin(at(30), BinlogPositionKind.MYSQL_GTID) == {}
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()


@pytest.mark.parametrize("pragma", [f"user_version = {FORMAT + 1}", "application_id = 7"])
def test_open_when_the_file_is_of_another_format_then_is_begun_anew(
    file: PreparedFile, tmp_path: Path, pragma: str
) -> None:
    file._connection.execute(f"PRAGMA {pragma}")
    file._connection.commit()
    file.close()
    again = PreparedFile(tmp_path, "shop")
    assert again.begin(at(30), BinlogPositionKind.MYSQL_GTID) == {}
    again.close()


def test_open_when_the_folder_can_not_be_made_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateFolderUnusable):
        PreparedFile(tmp_path / "state", "shop")
