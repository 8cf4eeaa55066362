"""Positions in a server's log: GTID sets of MySQL, GTID positions of MariaDB, file and offset.

Pure values, no I/O. Two GTID sets may each hold what the other lacks, so the question is always "is this transaction
in that position", never "which is later" (`agent.positions`).
"""

import json
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from menura.v1 import changes_pb2

from agent.positions import PositionKind, PositionsUnordered, PositionSyntaxError

#: first and last transaction number, both included
Interval = tuple[int, int]
#: key of the decoder's take_gtids, first and last number
Run = tuple[str, int, int]

MAX_GNO = 2**63 - 2
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_FILE = re.compile(r"(?P<base>.*)\.(?P<number>[0-9]{1,19})")
_OFFSET = re.compile(r"[0-9]{1,19}")
#: top and bottom byte of the count in a tagged set (Gtid_set::encode in rpl_gtid_set.cc, MySQL 8.3 and later)
_TAGGED_FORMAT = 1


class BinlogPositionKind(PositionKind):
    """How positions on a server are kept."""

    MYSQL_GTID = "mysql_gtid"
    MARIADB_GTID = "mariadb_gtid"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class MysqlGtids:
    """A set of MySQL GTIDs: 'uuid' or 'uuid:tag' -> disjoint, sorted intervals that don't touch."""

    intervals: Mapping[str, tuple[Interval, ...]]

    @classmethod
    def parse(cls, text: str) -> "MysqlGtids":
        """Read the server's text, e.g. of @@gtid_executed; raises `PositionSyntaxError`.

        >>> str(MysqlGtids.parse("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:5:blue:7, "))
        '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3:5:blue:7'
        """
        runs: list[Run] = []
        for part in (piece.strip() for piece in text.split(",")):
            if part:
                runs.extend(_parse_source(part))
        return cls({}).with_runs(runs)

    def with_runs(self, runs: Iterable[Run]) -> "MysqlGtids":
        """This set and the runs (key, first, last)."""
        added: dict[str, list[Interval]] = {}
        for key, first, last in runs:
            added.setdefault(key, []).append((first, last))
        if not added:
            return self
        intervals = dict(self.intervals)
        for key, new in added.items():
            intervals[key] = _merged([*intervals.get(key, ()), *new])
        return MysqlGtids(intervals)

    def has(self, gtid: str) -> bool:
        """Whether the transaction 'uuid[:tag]:number' is in the set."""
        key, _, number = gtid.rpartition(":")
        return _inside(self.intervals.get(key, ()), int(number), int(number))

    def covers(self, other: "MysqlGtids") -> bool:
        """Whether `other` is a subset."""
        return all(
            _inside(self.intervals.get(key, ()), first, last)
            for key, intervals in other.intervals.items()
            for first, last in intervals
        )

    def meet(self, other: "MysqlGtids") -> "MysqlGtids":
        """The intersection."""
        shared = {
            key: _shared(intervals, other.intervals[key])
            for key, intervals in self.intervals.items()
            if key in other.intervals
        }
        return MysqlGtids({key: intervals for key, intervals in shared.items() if intervals})

    def union(self, other: "MysqlGtids") -> "MysqlGtids":
        return self.with_runs(
            (key, first, last) for key, intervals in other.intervals.items() for first, last in intervals
        )

    def minus(self, other: "MysqlGtids") -> "MysqlGtids":
        """What `other` lacks.

        >>> uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        >>> str(MysqlGtids.parse(f"{uuid}:1-9").minus(MysqlGtids.parse(f"{uuid}:1-2:5")))
        '3e11fa47-71ca-11e1-9e33-c80aa9429562:3-4:6-9'
        """
        left = {key: _without(intervals, other.intervals.get(key, ())) for key, intervals in self.intervals.items()}
        return MysqlGtids({key: intervals for key, intervals in left.items() if intervals})

    @property
    def transaction_count(self) -> int:
        return sum(last - first + 1 for intervals in self.intervals.values() for first, last in intervals)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MysqlGtids) and dict(self.intervals) == dict(other.intervals)

    def __hash__(self) -> int:
        return hash(frozenset(self.intervals.items()))

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __str__(self) -> str:
        sources: list[str] = []
        last_uuid = ""
        for key in sorted(self.intervals):
            uuid, _, tag = key.partition(":")
            numbers = ":".join(
                str(first) if first == last else f"{first}-{last}" for first, last in self.intervals[key]
            )
            if uuid == last_uuid:
                sources[-1] += f":{tag}:{numbers}"
            else:
                sources.append(f"{key}:{numbers}")
            last_uuid = uuid
        return ",".join(sources)

    def encode(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID takes it.

        ::

            8  count of sources; with tags: 1 << 56 | count << 8 | 1
            per source:  16  UUID;  with tags: 1 tag length << 1, tag
                          8  count of intervals, then per interval 8 first, 8 last + 1
        """
        tagged = any(":" in key for key in self.intervals)
        count = len(self.intervals)
        parts = [struct.pack("<Q", _TAGGED_FORMAT << 56 | count << 8 | _TAGGED_FORMAT if tagged else count)]
        for key in sorted(self.intervals):
            uuid, _, tag = key.partition(":")
            parts.append(UUID(uuid).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(self.intervals[key])))
            parts.extend(struct.pack("<QQ", first, last + 1) for first, last in self.intervals[key])
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class MariadbGtids:
    """A MariaDB GTID position: domain -> (server id, sequence number) of its last transaction."""

    domains: Mapping[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> "MariadbGtids":
        """Read the server's text, e.g. of @@gtid_binlog_pos; raises `PositionSyntaxError`.

        >>> str(MariadbGtids.parse("1-7-3,0-1-9"))
        '0-1-9,1-7-3'
        """
        domains: dict[int, tuple[int, int]] = {}
        for part in (piece.strip() for piece in text.split(",")):
            if not part:
                continue
            found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})", part)
            if found is None:
                raise PositionSyntaxError(f"{part!r} is not DOMAIN-SERVER-SEQUENCE")
            domain, server, sequence = (int(number) for number in found.groups())
            if domain in domains:
                raise PositionSyntaxError(f"domain {domain} occurs twice")
            domains[domain] = (server, sequence)
        return cls(domains)

    def with_runs(self, runs: Iterable[Run]) -> "MariadbGtids":
        """This position moved on by the runs ('domain-server', first, last), in the log's order."""
        domains = dict(self.domains)
        for key, _, last in runs:
            domain, _, server = key.partition("-")
            domains[int(domain)] = (int(server), last)
        return MariadbGtids(domains)

    def has(self, gtid: str) -> bool:
        """Whether the transaction 'domain-server-sequence' is at or before this position."""
        domain, _, sequence = (int(number) for number in gtid.split("-"))
        return domain in self.domains and self.domains[domain][1] >= sequence

    def covers(self, other: "MariadbGtids") -> bool:
        return all(
            domain in self.domains and self.domains[domain][1] >= sequence
            for domain, (_, sequence) in other.domains.items()
        )

    def meet(self, other: "MariadbGtids") -> "MariadbGtids":
        """The least of each domain; a domain that one of them lacks is read from its beginning."""
        shared = self.domains.keys() & other.domains.keys()
        return MariadbGtids(
            {domain: min(self.domains[domain], other.domains[domain], key=lambda last: last[1]) for domain in shared}
        )

    def union(self, other: "MariadbGtids") -> "MariadbGtids":
        """The greatest of each domain."""
        domains = dict(self.domains)
        for domain, last in other.domains.items():
            domains[domain] = max(domains.get(domain, last), last, key=lambda found: found[1])
        return MariadbGtids(domains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtids) and dict(self.domains) == dict(other.domains)

    def __hash__(self) -> int:
        return hash(frozenset(self.domains.items()))

    def __bool__(self) -> bool:
        return bool(self.domains)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in sorted(self.domains.items()))


Gtids = MysqlGtids | MariadbGtids


#: of all positions here
KIND = "mysql"
#: the text of an empty set of GTIDs
BEGINNING = "the log's beginning"


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A place between two transactions of a source's log.

    `gtids` is None under `BinlogPositionKind.FILE`; then file and offset count, on the server `server_uuid` alone.
    """

    gtids: Gtids | None = None
    server_uuid: str = ""
    file: str = ""
    offset: int = 0

    def __str__(self) -> str:
        """In the server's own words.

        >>> str(BinlogPosition(file="binlog.000002", offset=157))
        'binlog.000002:157'
        """
        if self.gtids is not None:
            return str(self.gtids) or BEGINNING
        return f"{self.file}:{self.offset}"

    def has_transaction(self, gtid: str, file: str, begin_offset: int) -> bool:
        """Whether the transaction that begins at `file`:`begin_offset` lies before this position."""
        if self.gtids is not None:
            return self.gtids.has(gtid)
        return _file_order(file, begin_offset) < _file_order(self.file, self.offset)

    def covers(self, other: "BinlogPosition") -> bool:
        """Whether all that `other` has read is read here too; raises `PositionsUnordered` for different logs."""
        if isinstance(self.gtids, MysqlGtids) and isinstance(other.gtids, MysqlGtids):
            return self.gtids.covers(other.gtids)
        if isinstance(self.gtids, MariadbGtids) and isinstance(other.gtids, MariadbGtids):
            return self.gtids.covers(other.gtids)
        if self.gtids is not None or other.gtids is not None or self.server_uuid != other.server_uuid:
            raise PositionsUnordered(f"{self} and {other} are positions of different kinds or servers")
        return _file_order(self.file, self.offset) >= _file_order(other.file, other.offset)

    def is_comparable(self, other: "BinlogPosition") -> bool:
        """Whether `covers` can answer: both with GTIDs of one flavour, or both by file on one server."""
        if self.gtids is None:
            return other.gtids is None and self.server_uuid == other.server_uuid
        return type(self.gtids) is type(other.gtids)

    def is_earlier_in_files(self, other: "BinlogPosition") -> bool:
        """Whether it stands in an earlier file than `other`, or before it in the same; both of one server."""
        return _file_order(self.file, self.offset) < _file_order(other.file, other.offset)

    def same_place(self, other: "BinlogPosition") -> bool:
        return self.covers(other) and other.covers(self)

    def is_of(self, kind: PositionKind) -> bool:
        """Whether it has GTIDs just where `kind` needs them."""
        return (self.gtids is None) is (kind is BinlogPositionKind.FILE)

    def meet(self, other: "BinlogPosition") -> "BinlogPosition":
        """The greatest position that both cover; raises `PositionsUnordered`."""
        if other.covers(self):
            return self
        if self.covers(other):
            return other
        if isinstance(self.gtids, MysqlGtids) and isinstance(other.gtids, MysqlGtids):
            return BinlogPosition(self.gtids.meet(other.gtids), self.server_uuid)
        if isinstance(self.gtids, MariadbGtids) and isinstance(other.gtids, MariadbGtids):
            return BinlogPosition(self.gtids.meet(other.gtids), self.server_uuid)
        raise PositionsUnordered(f"{self} and {other}")

    def to_proto(self) -> changes_pb2.Position:
        """The text is `str`; the token says whether it is a GTID set, and has the rest."""
        is_beginning = self.gtids is not None and not self.gtids
        token = {
            "gtids": self.gtids is not None,
            "server_uuid": "" if is_beginning else self.server_uuid,
            "file": self.file,
            "offset": self.offset,
        }
        return changes_pb2.Position(kind=KIND, text=str(self), token=json.dumps(token))


def no_gtids(position_kind: BinlogPositionKind) -> Gtids | None:
    """An empty set; None where there are none."""
    empty: dict[BinlogPositionKind, Gtids] = {
        BinlogPositionKind.MYSQL_GTID: MysqlGtids({}),
        BinlogPositionKind.MARIADB_GTID: MariadbGtids({}),
    }
    return empty.get(position_kind)


def from_proto(position: changes_pb2.Position, position_kind: BinlogPositionKind) -> BinlogPosition:
    """The position as `position_kind` keeps it; raises `PositionSyntaxError`."""
    has_gtids, server_uuid, file, offset = _token(position)
    gtid_set = "" if not has_gtids or position.text == BEGINNING else position.text
    gtids: Gtids | None = None
    if position_kind is BinlogPositionKind.MYSQL_GTID:
        gtids = MysqlGtids.parse(gtid_set)
    elif position_kind is BinlogPositionKind.MARIADB_GTID:
        gtids = MariadbGtids.parse(gtid_set)
    elif not file:
        raise PositionSyntaxError("a position without GTIDs needs a file")
    return BinlogPosition(gtids, server_uuid, file, offset)


def is_file_only(position: changes_pb2.Position) -> bool:
    """Whether a stored position can only be read by file and offset (it was kept while the server had no GTIDs)."""
    try:
        has_gtids, server_uuid, _, _ = _token(position)
    except PositionSyntaxError:
        return False
    return not has_gtids and bool(server_uuid)


def has_file(position: changes_pb2.Position) -> bool:
    """Whether a stored position can be read by file and offset."""
    try:
        _, server_uuid, file, _ = _token(position)
    except PositionSyntaxError:
        return False
    return bool(server_uuid and file)


def _token(position: changes_pb2.Position) -> tuple[bool, str, str, int]:
    """Whether the text is a GTID set; server, file and offset. Raises `PositionSyntaxError`."""
    if position.kind != KIND:
        raise PositionSyntaxError(f"it is a position of a source of kind {position.kind or 'unknown'}")
    try:
        facts = json.loads(position.token)
        server_uuid, file, offset = str(facts["server_uuid"]), str(facts["file"]), int(facts["offset"])
        has_gtids = bool(facts["gtids"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as broken:
        raise PositionSyntaxError(f"its token can't be read ({type(broken).__name__})") from broken
    if not (server_uuid + file).isprintable() or not 0 <= offset < 1 << 63:
        raise PositionSyntaxError("its token names no place")
    return has_gtids, server_uuid, file, offset


def parse_file_offset(text: str) -> tuple[str, int] | None:
    """FILE:OFFSET in a user's words, or None when the text has another form.

    >>> parse_file_offset("binlog.000002:157"), parse_file_offset("0-1-9")
    (('binlog.000002', 157), None)
    """
    file, _, offset = text.strip().rpartition(":")
    if _FILE.fullmatch(file) is None or _OFFSET.fullmatch(offset) is None:
        return None
    return file, int(offset)


def log_number(file: str) -> int:
    """The number of a log file, e.g. 2 of 'binlog.000002'."""
    return _file_order(file, 0)[1]


def moved(position: BinlogPosition, runs: Iterable[Run], server_uuid: str, file: str, offset: int) -> BinlogPosition:
    """The position after the transactions of `runs`, the last of which ends at `file`:`offset` of that server."""
    gtids = position.gtids.with_runs(runs) if position.gtids is not None else None
    return BinlogPosition(gtids, server_uuid, file, offset)


def _file_order(file: str, offset: int) -> tuple[str, int, int]:
    found = _FILE.fullmatch(file)
    if found is None:
        raise PositionsUnordered(f"{file!r} is no log file's name")
    return found["base"], int(found["number"]), offset


def _parse_source(part: str) -> list[Run]:
    """'uuid:1-3:5:tag:7' as runs; a tag holds for the intervals after it."""
    uuid_text, *items = (item.strip() for item in part.split(":"))
    try:
        uuid = str(UUID(uuid_text))
    except ValueError as wrong:
        raise PositionSyntaxError(f"{uuid_text!r} is not a UUID") from wrong
    if not items:
        raise PositionSyntaxError(f"{part!r} has no transaction numbers")
    runs: list[Run] = []
    key = uuid
    for item in items:
        if _TAG.fullmatch(item.lower()):
            key = f"{uuid}:{item.lower()}"
            continue
        found = re.fullmatch(r"([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?", item)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= MAX_GNO:
            raise PositionSyntaxError(f"{item!r} of {uuid} is neither a tag nor NUMBER or FIRST-LAST")
        runs.append((key, first, last))
    return runs


def _merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _inside(intervals: tuple[Interval, ...], first: int, last: int) -> bool:
    at = bisect_right(intervals, (first, MAX_GNO + 1)) - 1
    return at >= 0 and intervals[at][0] <= first and last <= intervals[at][1]


def _without(intervals: tuple[Interval, ...], other: tuple[Interval, ...]) -> tuple[Interval, ...]:
    left: list[Interval] = []
    for first, last in intervals:
        at = first
        for begin, end in other:
            if end < at or begin > last:
                continue
            if begin > at:
                left.append((at, begin - 1))
            at = end + 1
        if at <= last:
            left.append((at, last))
    return tuple(left)


def _shared(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    shared: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            shared.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)
