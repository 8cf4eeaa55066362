"""The next thing to do for a dump: re-reads that wait for their turn hold up no other dump."""

import pytest
from menura.v1 import config_pb2, snapshot_pb2

from agent.runtime.session import StreamWriter
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.progress import SnapshotProgress
from agent.snapshot.tasks import TaskKind, find_task

PARENT, CHILD = ("shop", "parent"), ("shop", "child")


def progress(table: tuple[str, str], begins_in_seconds: int = 0) -> SnapshotProgress:
    """Planned, by a key."""
    order = snapshot_pb2.DumpOrder(
        dump=table[1],
        table=config_pb2.TableName(database=table[0], table=table[1]),
        plan=snapshot_pb2.DumpPlan(dump=table[1], key=["id"]),
        remaining=[snapshot_pb2.DumpRange(number=0)],
        begins_in_seconds=begins_in_seconds,
    )
    made = SnapshotProgress(order, 1)
    made.ordered(order)
    return made


@pytest.fixture
def child() -> SnapshotProgress:
    made = progress(CHILD)
    made.above = frozenset({PARENT})
    return made


def reason(child: SnapshotProgress, parent: SnapshotProgress) -> str:
    writer = StreamWriter.__new__(StreamWriter)  # a task only hands it on
    assert find_task([child, parent], SnapshotCoordinator(), writer, 0) is None
    return child.reason


def test_dump_when_one_of_its_parent_is_to_begin_then_it_waits_for_it(child: SnapshotProgress) -> None:
    assert "shop.parent, which the table's foreign keys follow, is dumped first" in reason(child, progress(PARENT))


def test_dump_when_one_of_its_parent_waits_for_its_turn_then_it_does_not_wait_for_it(child: SnapshotProgress) -> None:
    parent = progress(PARENT, begins_in_seconds=300)
    assert "has to say that the dump begins" in reason(child, parent)
    assert parent.reason.endswith("wait longer and longer, this one for 300 s")


def test_dump_when_its_turn_has_come_then_it_is_planned() -> None:
    order = snapshot_pb2.DumpOrder(dump="d", table=config_pb2.TableName(database="shop", table="t"))
    waiting = SnapshotProgress(order, 1)
    order.begins_in_seconds = 300
    waiting.ordered(order)
    writer = StreamWriter.__new__(StreamWriter)
    assert find_task([waiting], SnapshotCoordinator(), writer, 0) is None
    order.begins_in_seconds = 0
    waiting.ordered(order)
    task = find_task([waiting], SnapshotCoordinator(), writer, 0)
    assert task is not None and task.kind is TaskKind.PLAN
    assert not waiting.reason
