"""The desk between a source's plugins, without servers."""

import time

import pytest
from menura.v1 import config_pb2, mysql_binlog_pb2, mysql_client_pb2

from agent.mysql.dump.chunks import Chunk
from agent.mysql.dump.desk import GATHER_SECONDS, QUIET_SECONDS, Desk, TableStart, TaskTables
from agent.mysql.dump.dump_events import Ending
from agent.mysql.dump.floors import LEVEL_FLOORS, Floor, Floors
from agent.mysql.dump.whole_tables import DumpForgotten, WholeTable
from agent.mysql.dump.work import DumpWork, SentChunk
from agent.mysql.positions import MysqlGtids, Position, Scheme
from agent.mysql.progress import Progress

TABLE = ("shop", "orders")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
Event = mysql_binlog_pb2.TableEvent


class Numbers:
    def __init__(self, next_gsn: int) -> None:
        self.next_gsn = next_gsn

    def take_gsn(self) -> int:
        self.next_gsn += 1
        return self.next_gsn - 1


def at(number: int) -> Position:
    return Position(MysqlGtids({UUID: ((1, number),)}), UUID)


def desk_of(next_cut: int = 1, **task: object) -> Desk:
    desk = Desk()
    begin(desk, next_cut, **task)
    return desk


def begin(desk: Desk, next_cut: int, **task: object) -> None:
    nothing = {"committed": None, "kept": frozenset(), "awaited": {}, "undecided": frozenset()}
    facts = nothing | {"is_reading": False, "wholes": ()} | task
    desk.begin(TaskTables(Scheme.MYSQL_GTID, next_cut, **facts))  # type: ignore[arg-type]


def begin_after(desk: Desk, cut: int, position: int, gsn: int = 49, **task: object) -> None:
    begin(desk, cut + 1, **{"committed": Floor(cut, gsn, at(position), {}), "kept": frozenset({TABLE})} | task)


def streaming(position: Position) -> Progress:
    return Progress({TABLE: position}, position)


def chunk(number: int, *, gsn: int = 10, high: int = 5, part: int = 1) -> Chunk:
    return Chunk("d", TABLE, number, part, gsn, at(high))


def event(kind: int, gsn: int, *, removes_rows: bool = False) -> mysql_binlog_pb2.TableEvent:
    name = config_pb2.TableName(database=TABLE[0], table=TABLE[1])
    return Event(table=name, kind=kind, gsn=gsn, removes_rows=removes_rows)


def named(desk: Desk, cut: int, position: int) -> list[int]:
    return [ref.chunk for ref in desk.end_cut(cut, at(position), streaming(at(position)), Numbers(50)).chunks]


def test_floors_when_there_are_many_then_old_ones_stay_thinned() -> None:
    floors = Floors()
    last = 20_000
    for number in range(1, last + 1):
        floors.add(Floor(number, number * 10, at(number), {}))
    assert sum(len(level) for level in floors._levels) <= 12 * LEVEL_FLOORS
    for behind in (0, 1, 10, 100, 1000, 10_000):
        floor = floors.newest(TABLE, at(last - behind), 0)
        assert floor is not None
        assert 0 <= last - behind - floor.cut <= behind / 8
        assert floors.newest(TABLE, at(last - behind), floor.gsn + 1) is None


def test_floor_when_the_table_is_ahead_then_its_own_position_counts() -> None:
    floor = Floor(1, 7, at(3), {TABLE: at(9)})
    floors = Floors()
    floors.add(floor)
    assert floors.newest(TABLE, at(8), 0) is None
    assert floors.newest(TABLE, at(9), 0) == floor
    assert floor.covers(TABLE, at(9))
    assert not floor.covers(("shop", "other"), at(9))


def test_floor_when_its_cut_is_not_committed_then_it_is_none() -> None:
    desk = desk_of()
    desk.end_cut(1, at(5), streaming(at(5)), Numbers(31))
    assert desk.floor(TABLE, at(9), 0) is None
    desk.committed(1)
    assert desk.floor(TABLE, at(9), 0) == 30
    assert desk.floor(TABLE, at(9), 31) is None
    begin_after(desk, 1, 5, 30)
    assert desk.floor(TABLE, at(9), 0) == 30
    begin(desk, 2)
    assert desk.floor(TABLE, at(9), 0) is None


def test_chunks_when_landed_then_a_cut_that_has_what_they_show_names_them_in_the_order_of_their_range() -> None:
    desk = desk_of()
    for number in (1, 2):
        assert desk.add(chunk(number), desk.round)
    assert desk.add(chunk(3, high=7, part=2), desk.round)
    desk.landed("d", 2)
    assert not desk.is_ready(at(9), streaming(at(9)))
    assert named(desk, 1, 9) == []
    desk.landed("d", 1)
    desk.landed("d", 3)
    assert not desk.is_ready(at(4), streaming(at(4)))
    assert desk.is_ready(at(5), streaming(at(5)))
    assert named(desk, 2, 5) == [1, 2]
    assert named(desk, 3, 7) == [3]
    assert not desk.is_busy


def test_chunks_when_the_definition_changes_above_them_then_they_are_dropped_and_what_is_read_is_void() -> None:
    desk = desk_of()
    before = desk.round
    desk.add(chunk(1), before)
    desk.landed("d", 1)
    desk.table_event(event(Event.ALTERED, 11))
    assert named(desk, 1, 9) == []
    news = desk.news()
    assert news.dropped == {"d": {1}}
    assert not desk.add(chunk(2), before)
    assert not desk.add(chunk(2, gsn=10), news.round)
    assert desk.add(chunk(3, gsn=11), news.round)


def test_chunks_when_a_stream_begins_anew_then_those_of_uncommitted_cuts_are_dropped() -> None:
    desk = desk_of()
    for number in (1, 2, 3):
        desk.add(chunk(number, high=number), desk.round)
        desk.landed("d", number)
    assert named(desk, 1, 1) == [1]
    assert named(desk, 2, 2) == [2]
    begin(desk, 2)
    assert desk.news().dropped == {"d": {2, 3}}


def test_chunks_when_the_stream_goes_on_from_a_cut_that_passed_here_then_the_next_cuts_name_them() -> None:
    desk = desk_of()
    reading = desk.round
    for number in (1, 2, 3):
        desk.add(chunk(number, high=number), reading)
        desk.landed("d", number)
    assert named(desk, 1, 1) == [1]
    assert named(desk, 2, 2) == [2]
    desk.end()
    assert not desk.is_streamed(TABLE)
    desk.add(chunk(4, high=1), reading)  # its range waits for 3
    desk.landed("d", 4)
    begin_after(desk, 1, 1)
    assert desk.is_streamed(TABLE)
    assert named(desk, 2, 2) == [2]
    assert named(desk, 3, 3) == [3, 4]
    assert desk.round == reading
    assert not desk.news().dropped


@pytest.mark.parametrize(
    "other",
    [
        {"cut": 2, "position": 1},
        {"cut": 1, "position": 2},
        {"cut": 1, "position": 1, "gsn": 50},
        {"cut": 1, "position": 1, "kept": frozenset()},
        {"cut": 1, "position": 1, "committed": Floor(1, 49, Position(file="binlog.000001", offset=4), {})},
    ],
)
def test_chunks_when_the_stream_goes_on_elsewhere_or_their_table_begins_anew_then_they_are_dropped(
    other: dict[str, object],
) -> None:
    desk = desk_of()
    reading = desk.round
    desk.add(chunk(1), reading)
    desk.landed("d", 1)
    assert named(desk, 1, 1) == []
    begin_after(desk, **other)  # type: ignore[arg-type]
    assert desk.news().dropped == {"d": {1}}
    assert not desk.add(chunk(2), reading)
    assert not desk.is_streamed(TABLE)


def test_events_when_their_cut_is_committed_before_the_stream_begins_anew_then_chunks_below_them_do_not_count() -> None:
    desk = desk_of()
    desk.table_event(event(Event.ALTERED, 40))
    assert named(desk, 1, 1) == []
    desk.table_event(event(Event.ALTERED, 52))  # in a cut that is lost: it comes again, with this number or another
    begin_after(desk, 1, 1)
    assert not desk.add(chunk(1, gsn=39), desk.round)
    assert desk.add(chunk(2, gsn=49), desk.round)
    desk.table_event(event(Event.ALTERED, 51))
    assert desk.news().dropped == {"d": {2}}


def test_decisions_when_a_cut_is_under_way_then_it_is_awaited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[bool] = []
    for waited, is_committed in ((0.0, True), (QUIET_SECONDS, False)):
        desk = desk_of(awaited={"a": TABLE}, undecided=frozenset("a"))
        desk.reopen = lambda: opened.append(True)
        desk.end_cut(1, at(1), streaming(at(1)), Numbers(50))
        desk.decide_keyed("a")
        desk.reopen_if_due()
        assert not opened
        now += waited
        if is_committed:
            desk.committed(1)
        desk.reopen_if_due()
        assert opened.pop()


def test_table_when_it_is_dropped_then_the_client_hears_of_it_once() -> None:
    desk = desk_of()
    desk.table_event(event(Event.RENAMED, 11))  # put aside by an online change
    assert not desk.news().gone
    desk.table_event(event(Event.DROPPED, 12, removes_rows=True))
    assert desk.news().gone == {TABLE: (12, "DROPPED")}
    assert not desk.news().gone


def test_start_and_end_when_wanted_then_each_is_said_once_until_its_cut_is_lost() -> None:
    desk = desk_of()
    numbers = Numbers(50)
    desk.want_start("d", TABLE)
    assert desk.is_ready(at(1), streaming(at(1)))
    (started,) = desk.end_cut(1, at(1), streaming(at(1)), numbers).events
    assert (started.kind, started.gsn) == (Event.DUMP_STARTED, 50)
    desk.want_start("d", TABLE)
    assert not desk.end_cut(2, at(1), streaming(at(1)), numbers).events
    begin(desk, 2)
    desk.want_start("d", TABLE)
    assert not desk.end_cut(2, at(1), streaming(at(1)), numbers).events
    begin(desk, 1)
    desk.want_start("d", TABLE)
    assert desk.end_cut(1, at(1), streaming(at(1)), numbers).events
    assert desk.want_end(Ending("d", TABLE, 50, at(4)), desk.round)
    assert not desk.end_cut(2, at(3), streaming(at(3)), numbers).events
    (ended,) = desk.end_cut(3, at(4), streaming(at(4)), numbers).events
    assert (ended.kind, ended.removes_rows_before_gsn, ended.removes_rows) == (Event.DUMPED, 50, False)
    assert desk.is_ending("d")


def test_whole_table_when_it_has_landed_then_the_stream_opens_anew_and_its_start_cut_names_it() -> None:
    desk = desk_of(awaited={"w": TABLE}, undecided=frozenset({"w"}))
    opened: list[bool] = []
    desk.reopen = lambda: opened.append(True)
    whole = WholeTable("w", TABLE, 4, at(6))
    assert desk.start_of("w", Scheme.MYSQL_GTID) is TableStart.UNDECIDED
    desk.add_whole(whole)
    desk.reopen_if_due()
    assert not opened
    desk.landed("w", 4)
    desk.reopen_if_due()
    assert opened
    assert desk.start_of("w", Scheme.MYSQL_GTID) == at(6)
    begin(desk, 1, awaited={"w": TABLE}, wholes=(whole,))
    said = desk.end_cut(1, at(6), streaming(at(6)), Numbers(20))
    assert [(e.kind, e.gsn, e.removes_rows) for e in said.events] == [(Event.DUMPED, 20, True)]
    assert [(ref.chunk, ref.gsn) for ref in said.chunks] == [(4, 21)]
    # that cut is lost: whether the gateway still has the rows is not known
    begin(desk, 1, awaited={"w": TABLE})
    assert desk.start_of("w", Scheme.MYSQL_GTID) is TableStart.UNDECIDED
    assert desk.news().dropped == {"w": {4}}


def test_whole_table_when_the_gateway_has_dropped_it_then_its_table_does_not_begin() -> None:
    desk = Desk()
    whole = WholeTable("w", TABLE, 4, at(6))
    desk.add_whole(whole)
    desk.landed("w", 4)
    begin(desk, 1, awaited={"w": TABLE}, wholes=(whole,))
    desk.client_closed()
    with pytest.raises(DumpForgotten):
        desk.end_cut(1, at(6), streaming(at(6)), Numbers(20))


def test_work_when_a_chunk_is_given_back_then_its_range_begins_there_again_and_others_stay() -> None:
    ranges = [mysql_client_pb2.DumpRange(number=n, lower="", upper="") for n in (1, 2)]
    plan = mysql_client_pb2.DumpPlan(key=["id"], ranges=ranges)
    work = DumpWork(mysql_client_pb2.DumpOrder(dump="d"), 1)
    work.ordered(mysql_client_pb2.DumpOrder(dump="d", plan=plan, remaining=ranges, next_chunk=1))
    for number, part, lower, upper, last in ((1, 1, "", "a", False), (2, 2, "", "x", False), (3, 1, "a", "b", True)):
        work.sent(SentChunk(number, part, lower, upper, last, 5))
    work.committed(1)
    assert (work.ranges[1].is_read, work.uncommitted_rows) == (True, 10)
    work.give_back({3})
    assert (work.ranges[1].cursor, work.ranges[1].is_read, work.ranges[2].cursor) == ("a", False, "x")
    assert list(work.in_flight) == [2]


def test_decisions_when_others_are_open_then_the_stream_runs_for_a_while_before_it_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[float] = []

    def opens(seconds: float) -> bool:
        nonlocal now
        now += seconds
        desk.reopen_if_due()
        return bool(opened)

    desk = desk_of(awaited={"a": TABLE, "b": TABLE}, undecided=frozenset("ab"), is_reading=True)
    desk.reopen = lambda: opened.append(now)
    desk.decide_keyed("a")
    assert not opens(20)  # nothing is committed yet: the tables that run would starve
    desk.committed(1)
    assert not opens(59)
    assert opens(2)
    opened.clear()
    begin(desk, 2, awaited={"b": TABLE}, undecided=frozenset("b"), is_reading=True)
    desk.decide_keyed("b")
    assert opens(0)  # nobody else waits for a decision


def test_decisions_when_no_table_is_read_then_only_those_close_by_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    opened: list[float] = []
    desk = desk_of(awaited={"a": TABLE, "b": TABLE}, undecided=frozenset("ab"))
    desk.reopen = lambda: opened.append(now)
    desk.decide_keyed("a")
    desk.reopen_if_due()
    assert not opened
    now += GATHER_SECONDS
    desk.reopen_if_due()
    assert opened
