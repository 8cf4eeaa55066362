"""First parts of messages that wait for their share are on disk, over real gRPC."""

import asyncio
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.message_parts import PART_BYTES, in_parts
from menura.v1.changes_pb2 import Replicate
from menura.v1.stream_pb2 import StreamResponse

from gateway.backlog import PartsRoom
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    AgentStream,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)

SOURCES = [f"source-{number}" for number in range(6)]
ROWS = 3 * PART_BYTES


@pytest.fixture
def registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    for source in SOURCES:
        registry.want("acme", source, "orders")
    return registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary one, with room for one part of all messages that are on their way."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr("gateway.backlog.MAX_PARTS_BYTES", PART_BYTES)
    yield made
    assert not [*made.iterdir()]


def test_first_parts_when_they_wait_for_room_then_are_on_disk_and_each_message_lands(
    tmp_path: Path, folder: Path, registry: MemoryRegistry
) -> None:
    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, *SOURCES) as agent:
            opened = [(name, *await agent.open_binlog(name)) for name in SOURCES]
            begun = [(stream, run, _parts(stream, run)) for _, stream, run in opened]
            for stream, _, parts in begun:
                await stream.call.write(parts.pop(0))
            await eventually("those behind the first on disk", lambda: _open_in(folder) == len(SOURCES) - 1)
            await asyncio.gather(*(_end(stream, run, parts) for stream, run, parts in begun))
            assert _open_in(folder) == 0

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1] * len(SOURCES)


def test_first_parts_when_the_folder_takes_nothing_then_their_streams_end_for_a_while_and_the_first_goes_on(
    tmp_path: Path, folder: Path, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    held, holds = list[int](), PartsRoom.holds

    def seen(room: PartsRoom, size_bytes: int) -> None:
        held.append(size_bytes)
        holds(room, size_bytes)

    monkeypatch.setattr(PartsRoom, "holds", seen)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, *SOURCES) as agent:
            first, run = await agent.open_binlog(SOURCES[0])
            parts = _parts(first, run)
            await first.call.write(parts.pop(0))
            await eventually("the first in memory", lambda: held)
            second, other_run = await agent.open_binlog(SOURCES[1])
            await second.call.write(_parts(second, other_run)[0])
            error = await second.expect_error()
            assert (error.code, error.terminal) == ("SPOOL_FAILED", False), error
            assert error.found == f"{folder}/missing: {os.strerror(2)}"
            await _end(first, run, parts)
            second, other_run = await agent.open_binlog(SOURCES[1])
            await commit_cut(second, other_run, 1, [1])

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 1]


def _parts(stream: AgentStream, run: Replicate) -> list[bytes]:
    """A batch of some parts, as its stream's next message."""
    rows = rows_batch([1], note=random.Random(1).randbytes(ROWS).hex())
    stream.header.sequence += 1
    batch = change_batch(run, 1, "orders", rows)
    return [*in_parts(StreamResponse(header=stream.header, change_batch=batch).SerializeToString())]


async def _end(stream: AgentStream, run: Replicate, parts: list[bytes]) -> None:
    for part in parts:
        await stream.call.write(part)
    await stream.send(cut_end=cut_end(run, 1, 1))
    await stream.expect("cut_committed")


def _open_in(folder: Path) -> int:
    """Files without a name that this process has there."""
    return sum(_target(each).startswith(str(folder)) for each in Path("/proc/self/fd").iterdir())


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""
