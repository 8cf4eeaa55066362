"""The coordinator between a source's plugins, without servers."""

import time

import pytest
from menura.v1 import changes_pb2, config_pb2, snapshot_pb2

from agent.snapshot.chunks import Chunk
from agent.snapshot.coordinator import GATHER_SECONDS, QUIET_SECONDS, SnapshotCoordinator, TableStart, TaskTables
from agent.snapshot.dump_events import Ending
from agent.snapshot.progress import SentChunk, SnapshotProgress
from agent.snapshot.unchunked_snapshots import DumpForgotten, UnchunkedSnapshot
from agent.snapshot.watermarks import LEVEL_WATERMARKS, Watermark, Watermarks
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, MysqlGtids
from agent.table_positions import TablePositions

TABLE = ("shop", "orders")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
Event = changes_pb2.TableEvent


class Numbers:
    def __init__(self, next_gsn: int) -> None:
        self.next_gsn = next_gsn

    def take_gsn(self) -> int:
        self.next_gsn += 1
        return self.next_gsn - 1


def at(number: int) -> BinlogPosition:
    return BinlogPosition(MysqlGtids({UUID: ((1, number),)}), UUID)


def coordinator_of(next_cut: int = 1, **task: object) -> SnapshotCoordinator:
    coordinator = SnapshotCoordinator()
    begin(coordinator, next_cut, **task)
    return coordinator


def begin(coordinator: SnapshotCoordinator, next_cut: int, **task: object) -> None:
    nothing = {"committed": None, "kept": frozenset(), "awaited": {}, "undecided": frozenset()}
    facts = nothing | {"is_reading": False, "unchunked": ()} | task
    coordinator.begin(TaskTables(BinlogPositionKind.MYSQL_GTID, next_cut, **facts))  # type: ignore[arg-type]


def begin_after(coordinator: SnapshotCoordinator, cut: int, position: int, gsn: int = 49, **task: object) -> None:
    begin(
        coordinator, cut + 1, **{"committed": Watermark(cut, gsn, at(position), {}), "kept": frozenset({TABLE})} | task
    )


def streaming(position: BinlogPosition) -> TablePositions:
    return TablePositions({TABLE: position}, position)


def chunk(number: int, *, gsn: int = 10, high: int = 5, part: int = 1) -> Chunk:
    return Chunk("d", TABLE, number, part, gsn, at(high))


def event(kind: int, gsn: int, *, removes_rows: bool = False) -> changes_pb2.TableEvent:
    name = config_pb2.TableName(database=TABLE[0], table=TABLE[1])
    return Event(table=name, kind=kind, gsn=gsn, removes_rows=removes_rows)


def named(coordinator: SnapshotCoordinator, cut: int, position: int) -> list[int]:
    return [ref.chunk for ref in coordinator.end_cut(cut, at(position), streaming(at(position)), Numbers(50)).chunks]


def test_watermarks_when_there_are_many_then_old_ones_stay_thinned() -> None:
    watermarks = Watermarks()
    last = 20_000
    for number in range(1, last + 1):
        watermarks.add(Watermark(number, number * 10, at(number), {}))
    assert sum(len(level) for level in watermarks._levels) <= 12 * LEVEL_WATERMARKS
    for behind in (0, 1, 10, 100, 1000, 10_000):
        watermark = watermarks.newest(TABLE, at(last - behind), 0)
        assert watermark is not None
        assert 0 <= last - behind - watermark.cut <= behind / 8
        assert watermarks.newest(TABLE, at(last - behind), watermark.gsn + 1) is None


def test_watermark_when_the_table_is_ahead_then_its_own_position_counts() -> None:
    watermark = Watermark(1, 7, at(3), {TABLE: at(9)})
    watermarks = Watermarks()
    watermarks.add(watermark)
    assert watermarks.newest(TABLE, at(8), 0) is None
    assert watermarks.newest(TABLE, at(9), 0) == watermark
    assert watermark.covers(TABLE, at(9))
    assert not watermark.covers(("shop", "other"), at(9))


def test_watermark_when_its_cut_is_not_committed_then_it_is_none() -> None:
    coordinator = coordinator_of()
    coordinator.end_cut(1, at(5), streaming(at(5)), Numbers(31))
    assert coordinator.watermark(TABLE, at(9), 0) is None
    coordinator.committed(1)
    assert coordinator.watermark(TABLE, at(9), 0) == 30
    assert coordinator.watermark(TABLE, at(9), 31) is None
    begin_after(coordinator, 1, 5, 30)
    assert coordinator.watermark(TABLE, at(9), 0) == 30
    begin(coordinator, 2)
    assert coordinator.watermark(TABLE, at(9), 0) is None


def test_chunks_when_landed_then_a_cut_that_has_what_they_show_names_them_in_the_order_of_their_range() -> None:
    coordinator = coordinator_of()
    for number in (1, 2):
        assert coordinator.add(chunk(number), coordinator.attempt)
    assert coordinator.add(chunk(3, high=7, part=2), coordinator.attempt)
    coordinator.landed("d", 2)
    assert not coordinator.is_ready(at(9), streaming(at(9)))
    assert named(coordinator, 1, 9) == []
    coordinator.landed("d", 1)
    coordinator.landed("d", 3)
    assert not coordinator.is_ready(at(4), streaming(at(4)))
    assert coordinator.is_ready(at(5), streaming(at(5)))
    assert named(coordinator, 2, 5) == [1, 2]
    assert named(coordinator, 3, 7) == [3]
    assert not coordinator.is_busy


def test_chunk_when_the_first_stream_begins_after_its_worker_looked_for_progress_then_it_counts() -> None:
    coordinator = SnapshotCoordinator()
    of_worker = coordinator.attempt
    begin(coordinator, 1)
    coordinator.end_cut(1, at(5), streaming(at(5)), Numbers(31))
    coordinator.committed(1)
    assert coordinator.watermark(TABLE, at(9), 0) == 30
    assert coordinator.add(chunk(1, gsn=30), of_worker)
    begin(coordinator, 2)
    assert coordinator.news().dropped == {"d": {1}}
    assert not coordinator.add(chunk(2, gsn=30), of_worker)


def test_chunks_when_the_definition_changes_above_them_then_they_are_dropped_and_what_is_read_is_void() -> None:
    coordinator = coordinator_of()
    before = coordinator.attempt
    coordinator.add(chunk(1), before)
    coordinator.landed("d", 1)
    coordinator.table_event(event(Event.ALTERED, 11))
    assert named(coordinator, 1, 9) == []
    news = coordinator.news()
    assert news.dropped == {"d": {1}}
    assert not coordinator.add(chunk(2), before)
    assert not coordinator.add(chunk(2, gsn=10), news.attempt)
    assert coordinator.add(chunk(3, gsn=11), news.attempt)


def test_chunks_when_a_stream_begins_anew_then_those_of_uncommitted_cuts_are_dropped() -> None:
    coordinator = coordinator_of()
    for number in (1, 2, 3):
        coordinator.add(chunk(number, high=number), coordinator.attempt)
        coordinator.landed("d", number)
    assert named(coordinator, 1, 1) == [1]
    assert named(coordinator, 2, 2) == [2]
    begin(coordinator, 2)
    assert coordinator.news().dropped == {"d": {2, 3}}


def test_chunks_when_the_stream_goes_on_from_a_cut_that_passed_here_then_the_next_cuts_name_them() -> None:
    coordinator = coordinator_of()
    reading = coordinator.attempt
    for number in (1, 2, 3):
        coordinator.add(chunk(number, high=number), reading)
        coordinator.landed("d", number)
    assert named(coordinator, 1, 1) == [1]
    assert named(coordinator, 2, 2) == [2]
    coordinator.end()
    assert not coordinator.is_streamed(TABLE)
    coordinator.add(chunk(4, high=1), reading)  # its range waits for 3
    coordinator.landed("d", 4)
    begin_after(coordinator, 1, 1)
    assert coordinator.is_streamed(TABLE)
    assert named(coordinator, 2, 2) == [2]
    assert named(coordinator, 3, 3) == [3, 4]
    assert coordinator.attempt == reading
    assert not coordinator.news().dropped


@pytest.mark.parametrize(
    "other",
    [
        {"cut": 2, "position": 1},
        {"cut": 1, "position": 2},
        {"cut": 1, "position": 1, "gsn": 50},
        {"cut": 1, "position": 1, "kept": frozenset()},
        {"cut": 1, "position": 1, "committed": Watermark(1, 49, BinlogPosition(file="binlog.000001", offset=4), {})},
    ],
)
def test_chunks_when_the_stream_goes_on_elsewhere_or_their_table_begins_anew_then_they_are_dropped(
    other: dict[str, object],
) -> None:
    coordinator = coordinator_of()
    reading = coordinator.attempt
    coordinator.add(chunk(1), reading)
    coordinator.landed("d", 1)
    assert named(coordinator, 1, 1) == []
    begin_after(coordinator, **other)  # type: ignore[arg-type]
    assert coordinator.news().dropped == {"d": {1}}
    assert not coordinator.add(chunk(2), reading)
    assert not coordinator.is_streamed(TABLE)


def test_events_when_their_cut_is_committed_before_the_stream_begins_anew_then_chunks_below_them_do_not_count() -> None:
    coordinator = coordinator_of()
    coordinator.table_event(event(Event.ALTERED, 40))
    assert named(coordinator, 1, 1) == []
    coordinator.table_event(
        event(Event.ALTERED, 52)
    )  # in a cut that is lost: it comes again, with this number or another
    begin_after(coordinator, 1, 1)
    assert not coordinator.add(chunk(1, gsn=39), coordinator.attempt)
    assert coordinator.add(chunk(2, gsn=49), coordinator.attempt)
    coordinator.table_event(event(Event.ALTERED, 51))
    assert coordinator.news().dropped == {"d": {2}}


def test_decisions_when_a_cut_is_under_way_then_it_is_awaited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[bool] = []
    for waited, is_committed in ((0.0, True), (QUIET_SECONDS, False)):
        coordinator = coordinator_of(awaited={"a": TABLE}, undecided=frozenset("a"))
        coordinator.reopen = lambda: opened.append(True)
        coordinator.end_cut(1, at(1), streaming(at(1)), Numbers(50))
        coordinator.decide_keyed("a")
        coordinator.reopen_if_due()
        assert not opened
        now += waited
        if is_committed:
            coordinator.committed(1)
        coordinator.reopen_if_due()
        assert opened.pop()


def test_table_when_it_is_dropped_then_the_client_hears_of_it_once() -> None:
    coordinator = coordinator_of()
    coordinator.table_event(event(Event.RENAMED, 11))  # put aside by an online change
    assert not coordinator.news().gone
    coordinator.table_event(event(Event.DROPPED, 12, removes_rows=True))
    assert coordinator.news().gone == {TABLE: (12, "DROPPED")}
    assert not coordinator.news().gone


def test_start_and_end_when_wanted_then_each_is_said_once_until_its_cut_is_lost() -> None:
    coordinator = coordinator_of()
    numbers = Numbers(50)
    coordinator.want_start("d", TABLE)
    assert coordinator.is_ready(at(1), streaming(at(1)))
    (started,) = coordinator.end_cut(1, at(1), streaming(at(1)), numbers).events
    assert (started.kind, started.gsn) == (Event.DUMP_STARTED, 50)
    coordinator.want_start("d", TABLE)
    assert not coordinator.end_cut(2, at(1), streaming(at(1)), numbers).events
    begin(coordinator, 2)
    coordinator.want_start("d", TABLE)
    assert not coordinator.end_cut(2, at(1), streaming(at(1)), numbers).events
    begin(coordinator, 1)
    coordinator.want_start("d", TABLE)
    assert coordinator.end_cut(1, at(1), streaming(at(1)), numbers).events
    assert coordinator.want_end(Ending("d", TABLE, 50, at(4)), coordinator.attempt)
    assert not coordinator.end_cut(2, at(3), streaming(at(3)), numbers).events
    (ended,) = coordinator.end_cut(3, at(4), streaming(at(4)), numbers).events
    assert (ended.kind, ended.removes_rows_before_gsn, ended.removes_rows) == (Event.DUMPED, 50, False)
    assert coordinator.is_ending("d")


@pytest.mark.parametrize("tells_anew", [False, True])
def test_verification_when_it_begins_then_it_tells_anew_where_its_order_says_so(tells_anew: bool) -> None:
    coordinator = coordinator_of()
    coordinator.want_start("d", TABLE, Event.VERIFICATION_STARTED, tells_anew=tells_anew)
    (started,) = coordinator.end_cut(1, at(1), streaming(at(1)), Numbers(50)).events
    assert (started.kind, started.tells_anew) == (Event.VERIFICATION_STARTED, tells_anew)
    begin(coordinator, 1)  # its cut was lost
    coordinator.want_start("d", TABLE, Event.VERIFICATION_STARTED, tells_anew=tells_anew)
    (again,) = coordinator.end_cut(1, at(1), streaming(at(1)), Numbers(50)).events
    assert again.tells_anew == tells_anew


def test_whole_table_when_it_has_landed_then_the_stream_opens_anew_and_its_start_cut_names_it() -> None:
    coordinator = coordinator_of(awaited={"w": TABLE}, undecided=frozenset({"w"}))
    opened: list[bool] = []
    coordinator.reopen = lambda: opened.append(True)
    whole = UnchunkedSnapshot("w", TABLE, 4, at(6))
    assert coordinator.start_of("w", BinlogPositionKind.MYSQL_GTID) is TableStart.UNDECIDED
    coordinator.add_unchunked(whole)
    coordinator.reopen_if_due()
    assert not opened
    coordinator.landed("w", 4)
    coordinator.reopen_if_due()
    assert opened
    assert coordinator.start_of("w", BinlogPositionKind.MYSQL_GTID) == at(6)
    begin(coordinator, 1, awaited={"w": TABLE}, unchunked=(whole,))
    said = coordinator.end_cut(1, at(6), streaming(at(6)), Numbers(20))
    assert [(e.kind, e.gsn, e.removes_rows) for e in said.events] == [(Event.DUMPED, 20, True)]
    assert [(ref.chunk, ref.gsn) for ref in said.chunks] == [(4, 21)]
    # that cut is lost: whether the gateway still has the rows is not known
    begin(coordinator, 1, awaited={"w": TABLE})
    assert coordinator.start_of("w", BinlogPositionKind.MYSQL_GTID) is TableStart.UNDECIDED
    assert coordinator.news().dropped == {"w": {4}}


def test_whole_table_when_the_gateway_has_dropped_it_then_its_table_does_not_begin() -> None:
    coordinator = SnapshotCoordinator()
    whole = UnchunkedSnapshot("w", TABLE, 4, at(6))
    coordinator.add_unchunked(whole)
    coordinator.landed("w", 4)
    begin(coordinator, 1, awaited={"w": TABLE}, unchunked=(whole,))
    coordinator.client_closed()
    with pytest.raises(DumpForgotten):
        coordinator.end_cut(1, at(6), streaming(at(6)), Numbers(20))


def test_progress_when_a_chunk_is_given_back_then_its_range_begins_there_again_and_others_stay() -> None:
    ranges = [snapshot_pb2.DumpRange(number=n, lower="", upper="") for n in (1, 2)]
    plan = snapshot_pb2.DumpPlan(key=["id"], ranges=ranges)
    progress = SnapshotProgress(snapshot_pb2.DumpOrder(dump="d"), 1)
    progress.ordered(snapshot_pb2.DumpOrder(dump="d", plan=plan, remaining=ranges, next_chunk=1))
    for number, part, lower, upper, last in ((1, 1, "", "a", False), (2, 2, "", "x", False), (3, 1, "a", "b", True)):
        progress.sent(SentChunk(number, part, lower, upper, last, 5))
    progress.committed(1)
    assert (progress.ranges[1].is_read, progress.uncommitted_rows) == (True, 10)
    progress.give_back({3})
    assert (progress.ranges[1].cursor, progress.ranges[1].is_read, progress.ranges[2].cursor) == ("a", False, "x")
    assert list(progress.in_flight) == [2]


def test_decisions_when_others_are_open_then_the_stream_runs_for_a_while_before_it_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[float] = []

    def opens(seconds: float) -> bool:
        nonlocal now
        now += seconds
        coordinator.reopen_if_due()
        return bool(opened)

    coordinator = coordinator_of(awaited={"a": TABLE, "b": TABLE}, undecided=frozenset("ab"), is_reading=True)
    coordinator.reopen = lambda: opened.append(now)
    coordinator.decide_keyed("a")
    assert not opens(20)  # nothing is committed yet: the tables that run would starve
    coordinator.committed(1)
    assert not opens(59)
    assert opens(2)
    opened.clear()
    begin(coordinator, 2, awaited={"b": TABLE}, undecided=frozenset("b"), is_reading=True)
    coordinator.decide_keyed("b")
    assert opens(0)  # nobody else waits for a decision


def test_decisions_when_no_table_is_read_then_only_those_close_by_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[float] = []
    coordinator = coordinator_of(awaited={"a": TABLE, "b": TABLE}, undecided=frozenset("ab"))
    coordinator.reopen = lambda: opened.append(now)
    coordinator.decide_keyed("a")
    coordinator.reopen_if_due()
    assert not opened
    now += GATHER_SECONDS
    coordinator.reopen_if_due()
    assert opened


def test_pending_starts_when_snapshots_are_read_landed_and_begun_then_those_no_committed_cut_has_are_told() -> None:
    coordinator = coordinator_of()
    first, second = (UnchunkedSnapshot(dump, TABLE, 1, at(place)) for dump, place in (("a", 3), ("b", 5)))
    assert coordinator.pending_starts() == []
    coordinator.add_unchunked(first)
    coordinator.add_unchunked(second)
    coordinator.landed("a", 1)
    assert sorted(map(str, coordinator.pending_starts())) == sorted([str(at(3)), str(at(5))])
    begin(coordinator, 1, awaited={"a": TABLE}, unchunked=(first,))
    coordinator.end_cut(1, at(3), streaming(at(3)), Numbers(50))
    assert at(3) in coordinator.pending_starts()
    coordinator.committed(1)
    assert coordinator.pending_starts() == [at(5)]
    begin_after(coordinator, 1, 3)
    assert coordinator.pending_starts() == [at(5)]
    coordinator.over("b")
    assert coordinator.pending_starts() == []
    coordinator.add_unchunked(first)
    coordinator.client_closed()
    assert coordinator.pending_starts() == []
