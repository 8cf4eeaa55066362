"""Whether the log that a server has now goes on where it was read before; if not, why.

Comes in: a position, what the server says of its log, and what is remembered of the server that was read. Goes out:
nothing, or a `SourceError`, by comparing positions, files and the server's process, never by a text:

::

    PositionPurged   the server has executed what was read, and its log begins after it
    LogReset         the server has begun its log anew, and has been running since it was read: so it is the same one
    SourceDiverged   transactions that were read are not in the server's log
    SourceRebuilt    the log is of another server, or another one under the same names and numbers

The same numbers are not enough where the server may be another one: people choose the server id in a MariaDB's GTID,
and a copy of a server, with its UUID, goes on under it. So three transactions that are known must be the same: the
newest, the middle and the oldest. A process in which they were compared is not asked again, and one that the log has no
longer says nothing.

After the first two the server is certainly the right one; whether it is after the others, only its operator knows.
Nothing is durable here.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from menura.v1 import config_pb2

from agent.errors import LogReset, PositionPurged, SourceDiverged, SourceRebuilt
from agent.positions import PositionsUnordered
from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    Gtids,
    MariadbGtids,
    MysqlGtids,
    Run,
    log_number,
)
from agent.sources.mysql.server.server_log import FIRST_OFFSET, ReadTransaction, ServerLog, ServerProcess

DOING = "going on from a position"
_GONE = "The changes between are gone from this server's log, and are not in the lake"
_KEEP_LOGS = "Keep logs longer on the server: SET GLOBAL binlog_expire_logs_seconds = 604800"


def _never_begun(file: str) -> None:
    """Nothing is known of the file."""


def _no_transactions(gtids: Gtids) -> Sequence[ReadTransaction]:
    """None is known."""
    return ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of the server whose log was read last."""

    #: None: nothing is remembered
    process: ServerProcess | None = None
    #: where its first stream began: positions up to there may name files of another server
    since: BinlogPosition | None = None
    #: when a file of its log was begun, in seconds since the epoch, as it was read
    begun: Callable[[str], int | None] = _never_begun
    #: those to compare of what was read up to a position, from whichever server; the newest one that is known first
    transactions: Callable[[Gtids], Sequence[ReadTransaction]] = _no_transactions


class LogReader(Protocol):
    """Looks into the server's log; raises a `SourceError`."""

    def log_file_begun(self, file: str) -> int | None:
        """When the server began the file, in seconds since the epoch; None: there is none."""

    def transactions(self, file: str, domain: int, sequence: int) -> list[Run]:
        """Those of a MariaDB's domain from the file's begin up to the sequence number, in the log's order."""

    def statement_begun(self, after: BinlogPosition, read: ReadTransaction) -> int | None:
        """When a transaction's last statement began, in seconds since the epoch; None: it is not there.

        `after`: a place before it; its file's begin, or GTIDs without that one.
        """


class Diverged(SourceDiverged):
    """With what is known of it."""

    code = SourceDiverged.code
    #: GTIDs up to which the server has what was read; None: not known
    common: Gtids | None = None
    #: what it lacks, in words, and how many transactions that are; None: not known
    lacking: str = ""
    lacking_transactions: int | None = None


@dataclass(slots=True)
class Continuity:
    """Of one server, over a connection that the caller owns."""

    log: ServerLog
    source: str
    remembered: Remembered = field(default_factory=Remembered)
    reader: LogReader | None = None
    #: look into a MariaDB's log, as if nothing were known of the server: it may hold other transactions with the
    #: numbers of those that were read
    looks_into_log: bool = False

    def check(self, position: BinlogPosition, *, was_read: bool = True) -> None:
        """Raise why the server can't go on from `position`; `was_read`: a stream has come to it."""
        self._check_flavor(position)
        files = dict(self.log.files())
        if isinstance(position.gtids, MysqlGtids):
            purged, executed = self.log.mysql_gtids()
            if not executed.covers(position.gtids):
                raise self._lacking(position, position.gtids, executed)
            is_read_file = self._check_files(position, files)
            if not position.gtids.covers(purged):
                raise self._purged(position, f"the server has purged transactions up to {purged}")
            if was_read and not (is_read_file and self._is_same_process()):
                self._check_mysql_transactions(position, position.gtids, executed, purged)
        elif isinstance(position.gtids, MariadbGtids):
            first, last = self.log.mariadb_gtids()
            if not last.covers(position.gtids):
                raise self._ends_before(position, position.gtids, last)
            is_read_file = self._check_files(position, files)
            if not position.gtids.covers(first):
                found = f"the server's first log begins after {first}"
                # Nothing in the log is of what was read: that it is the same server must be known otherwise.
                raise self._purged(position, found) if self._is_remembered() else self.rebuilt(position, found)
            if self.looks_into_log or not self._is_remembered():
                self._check_transactions(position, position.gtids)
            if was_read and not (is_read_file and self._is_same_process()):
                self._check_mariadb_transactions(position, position.gtids, files, is_read_file=is_read_file)
        else:
            self._check_files(position, files)

    def after(self, position: BinlogPosition, why: PositionPurged | SourceRebuilt) -> BinlogPosition:
        """Where reading can go on although the server can't go on from `position`.

        As early as no transaction comes that was read before: the log's beginning, or what the two have in common.
        Of a server that has nothing in common with what was read it is the end: its log does not continue the tables.
        """
        oldest = self.log.oldest().position
        if type(oldest.gtids) is not type(position.gtids):
            return self.log.end()
        if isinstance(why, LogReset):
            return oldest
        if isinstance(why, PositionPurged):
            return _both(position, oldest)
        if isinstance(why, Diverged) and why.common is not None:
            return _both(replace(position, gtids=why.common), oldest)
        return self.log.end()

    def offer(self, position: BinlogPosition, why: SourceRebuilt) -> config_pb2.OtherServer:
        """The server that is there, as an operator sees it who may accept it."""
        process, (first, _) = self.log.process(), self.log.files()[0]
        begun = self.reader.log_file_begun(first) if self.reader is not None else None
        known = "\n".join((process.server, str(position), first, str(begun)))
        offered = config_pb2.OtherServer(
            identity=hashlib.sha256(known.encode()).hexdigest(),
            server=process.server,
            former_server=self.remembered.process.server if self.remembered.process is not None else "",
            lake_position=str(position),
            oldest_position=str(self.log.oldest().position),
            end_position=str(self.log.end()),
            goes_on_at=str(self.after(position, why)),
        )
        if isinstance(why, Diverged):
            offered.lacking = why.lacking
            if why.lacking_transactions is not None:
                offered.lacking_transactions = why.lacking_transactions
        return offered

    def rebuilt(self, position: BinlogPosition, found: str) -> SourceRebuilt:
        return SourceRebuilt(
            DOING,
            f"{found}: the server was rebuilt, restored or reset, or is another one",
            data="Nothing was read from it; the lake keeps what it has",
            remedy=self._accept(),
            source=self.source,
            position=str(position),
        )

    def diverged(
        self, position: BinlogPosition, found: str, common: Gtids | None, lacking: str, lacking_transactions: int | None
    ) -> Diverged:
        error = Diverged(
            DOING,
            f"{found}: the server was restored from an older copy, or is one that a fail-over has put in its place"
            " before it had all transactions, or is another one",
            data="Nothing was read from it; the lake keeps what it has, also of the transactions that the server lacks",
            remedy=self._accept(),
            source=self.source,
            position=str(position),
        )
        error.common, error.lacking, error.lacking_transactions = common, lacking, lacking_transactions
        return error

    def _accept(self) -> str:
        return (
            f"If it is the right server, see what following it would change: menura sources accept {self.source}; if"
            f" not, name the right one in sources.{self.source} of the agent's configuration and restart the agent"
        )

    # ---

    def _lacking(
        self, position: BinlogPosition, gtids: MysqlGtids, executed: MysqlGtids
    ) -> PositionPurged | SourceRebuilt:
        lacking = gtids.minus(executed)
        found = (
            f"the server has not executed {lacking.transaction_count} of the transactions that were read ({lacking})"
        )
        if self._is_same_process():
            return self._reset(position, found)
        common = gtids.meet(executed)
        if not common:
            return self.rebuilt(position, found)
        return self.diverged(position, found, common, str(lacking), lacking.transaction_count)

    def _ends_before(
        self, position: BinlogPosition, gtids: MariadbGtids, last: MariadbGtids
    ) -> PositionPurged | SourceRebuilt:
        found = f"the server's log ends at {last or 'its beginning'}"
        if last and (forgotten := sorted(gtids.domains.keys() - last.domains.keys())):
            found += f" and has nothing of domain {', '.join(map(str, forgotten))}, as after DELETE_DOMAIN_ID"
        if self._is_same_process():
            return self._reset(position, found)
        common = gtids.meet(last)
        # By its servers: a number alone is anybody's.
        shared = {domain: found for domain, found in common.domains.items() if found[0] == gtids.domains[domain][0]}
        if not shared:
            return self.rebuilt(position, found)
        lacking = {domain: at for domain, at in gtids.domains.items() if not last.has(f"{domain}-{at[0]}-{at[1]}")}
        count = sum(at[1] - shared[domain][1] for domain, at in lacking.items() if domain in shared)
        is_known = common == MariadbGtids(shared) and lacking.keys() <= shared.keys()
        words = f"those after {MariadbGtids(shared)} up to {MariadbGtids(lacking)}"
        return self.diverged(position, found, common if is_known else None, words, count if is_known else None)

    def _check_transactions(self, position: BinlogPosition, gtids: MariadbGtids) -> None:
        """Every domain's last transaction must be in the log, not only one with its number or a higher one."""
        files = [name for name, _ in self.log.files()]
        for domain, (server, sequence) in gtids.domains.items():
            at = self._file_before(files, domain, sequence)
            before = self.log.mariadb_gtids_at(files[at], FIRST_OFFSET).domains.get(domain)
            if before == (server, sequence) or self.reader is None:
                continue
            runs = self.reader.transactions(files[at], domain, sequence)
            if any(key == f"{domain}-{server}" and first <= sequence <= last for key, first, last in runs):
                continue
            same = [last for key, _, last in runs if key == f"{domain}-{server}"]
            if before is not None and before[0] == server:
                same = [before[1], *same]
            found = f"the server's log does not hold {domain}-{server}-{sequence}, and has other transactions after it"
            if not same:
                raise self.rebuilt(position, found)
            common = MariadbGtids({**gtids.domains, domain: (server, same[-1])})
            words = f"those after {domain}-{server}-{same[-1]} up to {domain}-{server}-{sequence}"
            raise self.diverged(position, found, common, words, sequence - same[-1])

    def _check_flavor(self, position: BinlogPosition) -> None:
        is_mariadb = self.log.position_kind is BinlogPositionKind.MARIADB_GTID
        if is_mariadb == isinstance(position.gtids, MariadbGtids):
            return
        names = ("MySQL", "MariaDB") if is_mariadb else ("MariaDB", "MySQL")
        raise self.rebuilt(position, f"the position is of a {names[0]}, this is a {names[1]}")

    def _check_mysql_transactions(
        self, position: BinlogPosition, gtids: MysqlGtids, executed: MysqlGtids, purged: MysqlGtids
    ) -> None:
        """Those that are remembered; one that the server has not in its log says nothing."""
        if self.reader is None:
            return
        for read in self.remembered.transactions(gtids):
            if purged.has(read.gtid):
                continue
            others = executed.minus(MysqlGtids({read.key: ((read.number, read.number),)}))
            begun = self.reader.statement_begun(BinlogPosition(others, self.log.server_uuid), read)
            if begun is not None:
                self._check_same(position, read, begun)

    def _check_mariadb_transactions(
        self, position: BinlogPosition, gtids: MariadbGtids, files: Mapping[str, int], *, is_read_file: bool
    ) -> None:
        """Those that are remembered; where the log is newer, the position itself must be at its place in it.

        The newest one must be there; a replica's log may begin behind the others. What holds then says that it is the
        server that was read, or a replica of it.
        """
        if self.reader is None:
            return
        in_files = [(read, self._file_of(list(files), read)) for read in self.remembered.transactions(gtids)]
        for number, (read, file) in enumerate(in_files):
            if file is None:
                continue
            begun = self.reader.statement_begun(BinlogPosition(None, "", file, FIRST_OFFSET), read)
            if begun is not None or (number == 0 and not is_read_file):
                self._check_same(position, read, begun)
        is_known = bool(in_files) and in_files[0][1] is not None
        if not is_known and not self._is_remembered() and not self._is_at_its_place(position, gtids, files):
            found = "nothing is known of the server that was read, and this one has other GTIDs at its place in the log"
            raise self.rebuilt(position, found)

    def _check_same(self, position: BinlogPosition, read: ReadTransaction, begun: int | None) -> None:
        if begun == read.begun:
            return
        there = f"is of {_utc(begun)}" if begun is not None else "is not in the server's log"
        found = f"{read.gtid} was read as of {_utc(read.begun)}, and {there}"
        raise self._reset(position, found) if self._is_same_process() else self.rebuilt(position, found)

    def _file_of(self, files: list[str], read: ReadTransaction) -> str | None:
        """The file that has the transaction, if any; None: it is older than the server's log."""
        domain = int(read.key.partition("-")[0])
        at = self._file_before(files, domain, read.number)
        _, begins = self.log.mariadb_gtids_at(files[at], FIRST_OFFSET).domains.get(domain, (0, 0))
        return files[at] if begins < read.number else None

    def _is_at_its_place(self, position: BinlogPosition, gtids: MariadbGtids, files: Mapping[str, int]) -> bool:
        is_there = FIRST_OFFSET <= position.offset <= files.get(position.file, 0)
        return is_there and self.log.mariadb_gtids_at(position.file, position.offset) == gtids

    def _file_before(self, files: list[str], domain: int, sequence: int) -> int:
        """The last file that begins before the domain's transaction of this number."""
        low, high = 0, len(files) - 1
        while low < high:
            middle = (low + high + 1) // 2
            _, begins = self.log.mariadb_gtids_at(files[middle], FIRST_OFFSET).domains.get(domain, (0, 0))
            low, high = (middle, high) if begins < sequence else (low, middle - 1)
        return low

    def _check_files(self, position: BinlogPosition, files: Mapping[str, int]) -> bool:
        """The file of the position must be the one that was read, where this is the server that it was read from.

        Whether it certainly is.
        """
        if not self._names_files_of_this(position):
            if position.gtids is None:
                found = f"the position is of server {position.server_uuid}, this is {self.log.server_uuid}"
                raise self.rebuilt(position, found)
            return False
        if not position.file:
            return False
        found = self._contradiction(position, files)
        before = self.remembered.begun(position.file) if self._is_remembered() else None
        now = None
        if not found and before and position.file in files and self.reader is not None:
            now = self.reader.log_file_begun(position.file)
            if now and before != now:
                found = f"{position.file} was begun at {_utc(before)} before, and at {_utc(now)} now"
        if found:
            raise self._reset(position, found) if self._is_same_process() else self.rebuilt(position, found)
        return now is not None

    def _contradiction(self, position: BinlogPosition, files: Mapping[str, int]) -> str:
        """What shows that the files are others than those that were read; empty: nothing does."""
        if position.file not in files:
            first = next(iter(files))
            if not _is_earlier(position.file, first):
                return f"the server has no log {position.file}"
            if position.gtids is None:
                raise self._purged(position, f"the server's first log is {first}")
            return ""
        if not FIRST_OFFSET <= position.offset <= files[position.file]:
            return f"{position.file} ends at {files[position.file]}, and was read up to {position.offset}"
        return ""

    def _names_files_of_this(self, position: BinlogPosition) -> bool:
        """Whether file and offset of the position are of this server: by its UUID, or since it was read behind it."""
        if self.log.server_uuid:
            return position.server_uuid == self.log.server_uuid
        since = self.remembered.since if self._is_remembered() else None
        return since is not None and since.is_comparable(position) and not since.covers(position)

    def _is_remembered(self) -> bool:
        before = self.remembered.process
        return before is not None and self.log.process().server == before.server

    def _is_same_process(self) -> bool:
        before = self.remembered.process
        return before is not None and self.log.process().goes_on_from(before)

    def _purged(self, position: BinlogPosition, found: str) -> PositionPurged:
        return PositionPurged(DOING, found, data=_GONE, remedy=_KEEP_LOGS, source=self.source, position=str(position))

    def _reset(self, position: BinlogPosition, found: str) -> LogReset:
        found = f"{found}, and it has been running since: its log was reset"
        return LogReset(DOING, found, data=_GONE, remedy=_KEEP_LOGS, source=self.source, position=str(position))


def _both(position: BinlogPosition, oldest: BinlogPosition) -> BinlogPosition:
    """Past both, at the place of the log's beginning."""
    if isinstance(position.gtids, MysqlGtids) and isinstance(oldest.gtids, MysqlGtids):
        return replace(oldest, gtids=oldest.gtids.union(position.gtids))
    if isinstance(position.gtids, MariadbGtids) and isinstance(oldest.gtids, MariadbGtids):
        return replace(oldest, gtids=oldest.gtids.union(position.gtids))
    return oldest


def _is_earlier(file: str, other: str) -> bool:
    try:
        return log_number(file) < log_number(other)
    except PositionsUnordered:
        return False


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
