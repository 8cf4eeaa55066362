"""Which of the remembered transactions are compared with a server's log, without a server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from agent.errors import SourceRebuilt
from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    Gtids,
    MariadbGtids,
    MysqlGtids,
    Run,
)
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.read_transactions import ReadTransactions
from agent.sources.mysql.server.continuity import Continuity, Remembered
from agent.sources.mysql.server.server_log import ReadTransaction, ServerLog, ServerProcess

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
BEFORE = ServerProcess("before", 100, 7)
FILE = "binlog.000009"


@dataclass
class Facts:
    """A fact of the history that is not on a disk."""

    facts: dict[str, str] = field(default_factory=dict)

    def fact(self, name: str) -> str:
        return self.facts.get(name, "")

    def keep_fact(self, name: str, value: str) -> None:
        self.facts[name] = value


@dataclass
class Log:
    """What a server says of its log: it has transactions up to 99, and none up to `purged`."""

    is_mariadb: bool
    purged: int = 0
    running: ServerProcess = BEFORE

    @property
    def position_kind(self) -> BinlogPositionKind:
        return BinlogPositionKind.MARIADB_GTID if self.is_mariadb else BinlogPositionKind.MYSQL_GTID

    @property
    def server_uuid(self) -> str:
        return "" if self.is_mariadb else UUID

    def files(self) -> list[tuple[str, int]]:
        return [(FILE, 10_000)]

    def process(self) -> ServerProcess:
        return self.running

    def mysql_gtids(self) -> tuple[MysqlGtids, MysqlGtids]:
        purged = MysqlGtids({UUID: ((1, self.purged),)}) if self.purged else MysqlGtids({})
        return purged, MysqlGtids({UUID: ((1, 99),)})

    def mariadb_gtids(self) -> tuple[MariadbGtids, MariadbGtids]:
        return self.mariadb_gtids_at(FILE, 4), MariadbGtids({0: (1, 99)})

    def mariadb_gtids_at(self, file: str, offset: int) -> MariadbGtids:
        return MariadbGtids({0: (1, self.purged)} if self.purged else {})


@dataclass
class Reader:
    """A log with these transactions, by number: when each one began."""

    begun: dict[int, int]
    asked: list[int] = field(default_factory=list)

    def log_file_begun(self, file: str) -> int | None:
        return 50

    def transactions(self, file: str, domain: int, sequence: int) -> list[Run]:
        return [("0-1", 1, 99)]

    def statement_begun(self, after: BinlogPosition, read: ReadTransaction) -> int | None:
        self.asked.append(read.number)
        return self.begun.get(read.number)


def remembered(is_mariadb: bool) -> Sequence[ReadTransaction]:
    """What `ReadTransactions` gives of five that were read, each in the second of its number."""
    kept = ReadTransactions(cast(SchemaHistory, Facts()))
    for number in (10, 30, 50, 70, 90):
        kept.add(ReadTransaction("0-1" if is_mariadb else UUID, number, number))
    gtids: Gtids = MariadbGtids({0: (1, 95)}) if is_mariadb else MysqlGtids({UUID: ((1, 95),)})
    return kept.compared_in(gtids)


def check(log: Log, reader: Reader) -> None:
    """From the position behind transaction 95."""
    gtids: Gtids = MariadbGtids({0: (1, 95)}) if log.is_mariadb else MysqlGtids({UUID: ((1, 95),)})
    known = Remembered(
        process=BEFORE,
        since=BinlogPosition(
            MariadbGtids({0: (1, 5)}) if log.is_mariadb else MysqlGtids({UUID: ((1, 5),)}), "", FILE, 4
        ),
        begun=lambda file: 50,
        transactions=lambda _: remembered(log.is_mariadb),
    )
    position = BinlogPosition(gtids, log.server_uuid, FILE, 500)
    Continuity(cast(ServerLog, log), "shop", known, reader).check(position)


@pytest.mark.parametrize("is_mariadb", [False, True])
@pytest.mark.parametrize("differs", [10, 50, 90])
def test_log_when_one_of_three_transactions_began_at_another_time_then_is_another_servers(
    is_mariadb: bool, differs: int
) -> None:
    begun = {10: 10, 50: 50, 90: 90}
    log = Log(is_mariadb, running=ServerProcess("after", 300, 1))
    reader = Reader(begun)
    check(log, reader)
    assert reader.asked == [90, 50, 10]
    with pytest.raises(SourceRebuilt) as refused:
        check(log, Reader(begun | {differs: 11_111}))
    assert f"{differs} was read as of" in refused.value.found


@pytest.mark.parametrize("is_mariadb", [False, True])
def test_log_when_it_begins_behind_older_transactions_then_they_say_nothing(is_mariadb: bool) -> None:
    log = Log(is_mariadb, purged=60, running=ServerProcess("after", 300, 1))
    reader = Reader({90: 90})
    check(log, reader)
    assert reader.asked == [90]


def test_log_when_it_is_of_a_replica_that_began_later_then_what_it_lacks_says_nothing() -> None:
    """A MariaDB that was made of a backup: its log does not say where it begins."""
    check(Log(True, running=ServerProcess("after", 300, 1)), Reader({90: 90}))


@pytest.mark.parametrize("is_mariadb", [False, True])
def test_log_when_its_process_was_compared_before_then_is_not_read_again(is_mariadb: bool) -> None:
    started_again = Reader({10: 10, 50: 50, 90: 90})
    check(Log(is_mariadb, running=ServerProcess("before", 300, 1)), started_again)
    assert started_again.asked == [90, 50, 10]
    same = Reader({})
    check(Log(is_mariadb, running=ServerProcess("before", 100, 8)), same)
    assert same.asked == []
