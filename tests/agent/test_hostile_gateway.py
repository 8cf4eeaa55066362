"""What a hostile gateway can do to the database's host: memory, and how often reads begin anew; and what is logged."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from menura.bounds import MAX_SYNCED_TABLES
from menura.change_batch import Compression
from menura.v1 import config_pb2, stream_pb2
from menura.wire_format import length_delimited

from agent.capture.plugin import BURST_RESTARTS, RESTARTS_PER_SECOND, ChangesPlugin
from agent.capture.task import Task, TaskCancelled
from agent.errors import GatewayRefused
from agent.filter import Filter
from agent.runtime.commands import Bucket, CommandLog
from agent.runtime.credit import Credit
from agent.runtime.requests import MAX_CONTROL_BYTES, read_request
from agent.runtime.session import StreamWriter
from agent.runtime.state import SourceState
from agent.settings import SourceConfig
from agent.snapshot.coordinator import SnapshotCoordinator
from tests.agent.running import environment
from tests.servers import ROOT
from tests.stack import wait_for

MIB = 1 << 20
#: an agent of idle streams, and what the largest message that it takes may cost
MOST_GROWN_BYTES = 256 * MIB
CONFIG = stream_pb2.Control_Config
Header, Request = stream_pb2.Header, stream_pb2.StreamRequest


def desired(generation: int, tables: bytes) -> bytes:
    """`tables`: serialized fields of that name."""
    state = config_pb2.DesiredState(source="shop", generation=generation).SerializeToString() + tables
    field = Request.DESCRIPTOR.fields_by_name["desired_state"].number
    return length_delimited(field, len(state)) + state


def tables(count: int, name_chars: int = 40) -> bytes:
    names = ((f"d{number:0{name_chars - 1}}", f"t{number:0{name_chars - 1}}") for number in range(count))
    named = [config_pb2.TableName(database=database, table=table) for database, table in names]
    return config_pb2.DesiredState(tables=named).SerializeToString()


EMPTY_TABLE = b"\x1a\x00"
ATTACKS = {
    "100_mib_of_names": lambda: desired(1, tables(1_000) * (100 * MIB // 85_000)),
    "30_mib_of_empty_tables": lambda: desired(1, EMPTY_TABLE * (15 * MIB)),
    "largest_that_is_taken": lambda: desired(1, tables(MAX_SYNCED_TABLES, 64)),
}


@contextmanager
def hostile_gateway(attack: bytes) -> Iterator[str]:
    """Sends the attack on each Control_Config stream; the other streams are as they should be."""

    def serve(received: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        header = stream_pb2.StreamResponse.FromString(next(received)).header

        def numbered(number: int) -> Header:
            header.sequence = number
            return header

        yield Request(header=numbered(1), hello_ack=config_pb2.HelloAck(gateway="evil")).SerializeToString()
        if header.request_type == CONFIG:
            yield Request(header=numbered(2)).SerializeToString() + attack
        for _message in received:
            pass

    handler = grpc.stream_stream_rpc_method_handler(serve, None, None)  # bytes in and out
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", 300 * MIB)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("menura.v1.Gateway", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def control_streams(address: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.agent.control_streams", address]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def peak_bytes(process: "subprocess.Popen[bytes]", name: str = "VmHWM") -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("name", ATTACKS)
def test_memory_of_an_agent_when_a_desired_state_is_huge_then_it_is_bounded(name: str, tmp_path: Path) -> None:
    """H7: 100 MiB took 2,091 MiB."""
    log = tmp_path / "log"
    with hostile_gateway(ATTACKS[name]()) as address, control_streams(address, log) as process:
        is_taken = name == "largest_that_is_taken"
        said = "request=desired_state generation=1 tables=50000" if is_taken else "stream failed|gateway not reached"
        wait_for("the agent's line", lambda: re.search(said, log.read_text()))
        grown_bytes = peak_bytes(process) - 60 * MIB
    assert grown_bytes < MOST_GROWN_BYTES, f"{grown_bytes >> 20} MiB"
    assert ("tenant=acme gateway=evil source=shop" in log.read_text()) is is_taken


def test_request_when_it_has_too_many_tables_or_too_long_names_then_it_is_refused_by_name() -> None:
    for bad in (tables(MAX_SYNCED_TABLES + 1, 8), tables(1, 300), bytes(MAX_CONTROL_BYTES)):
        with pytest.raises(GatewayRefused, match=r"more than|no message"):
            read_request(desired(1, bad), CONFIG, "gw:7070")
    assert (
        len(read_request(desired(1, tables(MAX_SYNCED_TABLES, 64)), CONFIG, "gw:7070").desired_state.tables)
        == MAX_SYNCED_TABLES
    )


def test_commands_when_they_come_without_end_then_the_lines_are_bounded_and_say_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    commands, now = CommandLog(), [0.0]
    commands._lines = Bucket(1.0, 3, lambda: now[0])
    request = Request(header=Header(tenant="acme", source="shop"), replicate={"generation": 7})
    with caplog.at_level("INFO", "menura.commands"):
        for _ in range(1_000):
            commands.obeyed(request, "gw-1")
        now[0] = 5.0
        commands.obeyed(request, "gw-1")
        commands.obeyed(Request(heartbeat_ack={}), "gw-1")
    facts = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert len(facts) == 4
    assert facts[0] == {
        "tenant": "acme", "gateway": "gw-1", "source": "shop", "request": "replicate", "generation": 7, "tables": 0,
        "that_begin": 0,
    }  # fmt: skip
    assert facts[-1]["left_out_before"] == 997


class Restarts:
    """What a source does for Replicates, and how often it is told to."""

    def __init__(self) -> None:
        self.generations: list[int] = []

    def preflight(self) -> str:
        return ""

    def watch(self, on_reset: Callable[[], None]) -> None:
        """There is no log."""

    def read(self, task: Task) -> None:
        self.generations.append(task.replicate.generation)
        task.cancelled.wait()
        raise TaskCancelled

    def progressed(self) -> None:
        """No cut is committed."""

    def stop(self) -> None:
        """It has no threads."""


def test_replicates_when_they_come_without_end_then_few_restart_reading_and_the_newest_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    bucket = Bucket(RESTARTS_PER_SECOND, BURST_RESTARTS, lambda: now[0])
    monkeypatch.setattr("agent.capture.plugin.Bucket", lambda *_: bucket)
    state, changes = SourceState(SourceConfig(name="shop", kind="mysql", filter=Filter())), Restarts()
    plugin = ChangesPlugin(stream_pb2.MySQLBinlog, state, SnapshotCoordinator(), Credit(), changes)
    plugin.opened(StreamWriter(Header(), Compression.LZ4), config_pb2.HelloAck())
    with caplog.at_level("INFO", "menura.replicator"):
        for generation in range(1, 1_001):
            plugin.received(Request(replicate={"generation": generation}))
            if generation <= BURST_RESTARTS:
                wait_for("the burst", lambda: len(changes.generations) == generation)  # noqa: B023
        assert len(changes.generations) == BURST_RESTARTS
        plugin.received(Request(replicate={"generation": 1_001}))
        now[0] += 1 / RESTARTS_PER_SECOND  # behind it: the worker looks by itself, and would begin the one before
        wait_for("the newest", lambda: changes.generations[-1] == 1_001)
    plugin.stop()
    assert len(changes.generations) == BURST_RESTARTS + 1
    superseded = [getattr(record, "fields", {}).get("superseded") for record in caplog.records]
    assert 1_000 - BURST_RESTARTS in superseded
