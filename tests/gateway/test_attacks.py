"""What was done to the gateway by hostile clients, over real gRPC: each is refused, and harms nobody else."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from menura.message_parts import PART_BYTES, in_parts
from menura.protocol import PROTOCOL_VERSION
from menura.v1.changes_pb2 import Ahead, Position, TableStarted, TableStopped
from menura.v1.config_pb2 import Hello, TableName
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import Header, MessagePart, RequestType, StreamResponse
from menura.wire_format import length_delimited

from gateway import server, streams_service
from gateway.admission import Admission
from gateway.landing.chunks import PendingChunks
from gateway.landing.committer import Committer
from gateway.landing.gathered import LEAST_BYTES, Gathered
from gateway.registry import SourceKey
from tests.gateway.harness import data_files, landed_gsns, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    ANSWER_SECONDS,
    OPTIONS,
    change_batch,
    chunk_end,
    commit_cut,
    cut_end,
    dump_plan,
    eventually,
    raw_stream,
    rows_batch,
    scripted_agent,
    table_event,
)
from tests.gateway.sql_registry import open_registry, want, want_dump

HOSTILE, HONEST = SourceKey("acme", "shop"), SourceKey("globex", "shop")


def test_chunks_when_they_say_to_hold_more_than_sql_counts_then_their_stream_ends_and_the_other_tenant_commits(
    tmp_path: Path,
) -> None:
    """C1: the log had both, their sum ended the process, and each restart."""
    database, registry = open_registry(tmp_path / "control.db")
    for key in (HOSTILE, HONEST):
        want(database, key, "orders")
    dump = want_dump(database, HOSTILE, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path / "landing", registry) as address,
            scripted_agent(address, "shop", tenant="acme") as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            stream, run = await honest.open_binlog("shop")
            for attempt in range(3):
                client, _ = await hostile.open_client("shop")
                if not attempt:
                    await client.send(dump_plan=dump_plan(dump))
                    await client.expect("desired_dumps")
                await client.send(chunk_end=chunk_end(dump, attempt + 1, "", "", 0, source_bytes=2**63 - 1))
                error = await client.expect_error()
                assert (error.code, error.found) == ("PAYLOAD_INVALID", f"chunk {attempt + 1} of {2**63 - 1} bytes")
                await commit_cut(stream, run, attempt + 1, [attempt + 1])

    asyncio.run(scenario())
    database.close()


@pytest.mark.parametrize(
    "said",
    [
        {"last_gsn": 2**63 - 1},
        {"last_gsn": 2**62},
        {"last_transaction_id": 2**63 - 1},
        {"first_commit_timestamp_us": -1},
        {"last_commit_timestamp_us": 2**63 - 1},
    ],
)
def test_a_cut_when_its_numbers_leave_nothing_to_count_on_from_then_it_is_refused_and_the_source_goes_on(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    """A last_gsn of 2^63-1 was committed; from then on every stream of the source failed with INTERNAL."""
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            last_gsn, changes = said.get("last_gsn", 0), {name: said[name] for name in said if name != "last_gsn"}
            await stream.send(cut_end=cut_end(run, 1, last_gsn, **changes))
            assert (await stream.expect_error()).code in ("OUT_OF_SEQUENCE", "PAYLOAD_INVALID")
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())
    assert (len(read_log(tmp_path)), landed_gsns(tmp_path)) == (1, [1])


@pytest.mark.long
def test_errors_when_an_agent_says_thousands_then_the_log_keeps_a_bounded_number_of_bounded_plain_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1,900 of them in 5 s wrote 109 MiB; a carriage return and escape codes were written as they came."""
    error = Error(code="X", doing="a\r\n\x1b[2J\u202eb", found="x" * 60_000, remedy="c\x9bd")

    async def scenario() -> None:
        async with running_gateway(tmp_path, MemoryRegistry()) as address, scripted_agent(address, "shop") as agent:
            stream = await agent.open("Control_Heartbeat")
            await stream.expect("hello_ack")
            for _ in range(1_000):
                await stream.send(error=error)
            other = await agent.open("Control_Config")
            await other.expect("hello_ack")

            def lines() -> list[str]:
                return [each.getMessage() for each in caplog.records if "agent reports" in each.getMessage()]

            await eventually("errors", lambda: len(lines()) >= 400)

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("gateway")]
    assert len(lines) <= 800
    assert all(line.isprintable() and len(line) <= 3_000 for line in lines)


async def _refusal(address: str, *messages: bytes, **options: Any) -> tuple[str, str]:
    """The status with which the gateway ends a stream of these gRPC messages, and what it says."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call = raw_stream(channel, **options)
        said = ""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            for message in messages:
                await call.write(message)
            async with asyncio.timeout(ANSWER_SECONDS):
                while (answer := await call.read()) is not grpc.aio.EOF:
                    if answer.WhichOneof("payload") == "error":
                        said = answer.error.code
        return (await call.code()).name, said


def _hello(**facts: Any) -> StreamResponse:
    header = Header(tenant="acme", agent="a", request_type=RequestType.Control_Config, sequence=1, session="s")
    return StreamResponse(header=header, hello=Hello(protocol=PROTOCOL_VERSION, **facts))


def _parts(whole_bytes: int, *sizes: int) -> list[bytes]:
    return [
        StreamResponse(part=MessagePart(whole_bytes=whole_bytes, data=bytes(size))).SerializeToString()
        for size in sizes
    ]


def test_lines_of_an_agent_when_it_has_many_sources_then_they_share_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each source had a quota of its own, so 256 of them could write 128,000 lines."""
    monkeypatch.setattr("gateway.log_lines.BURST_LINES", 10)
    monkeypatch.setattr("gateway.log_lines.LINES_PER_SECOND", 1e-6)
    names = [f"source-{number}" for number in range(30)]

    async def scenario() -> None:
        async with running_gateway(tmp_path, MemoryRegistry()) as address, scripted_agent(address, *names) as agent:
            for name in names:
                await (await agent.open("MySQLClient", name)).expect("cartography_request")

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if "agent-1" in record.getMessage()]) <= 10


def test_first_messages_when_no_agent_sends_such_then_each_is_refused_by_name(tmp_path: Path) -> None:
    small, large = _hello().SerializeToString(), _hello(sources=[{}] * 150_000).SerializeToString()
    undecodable = (b"\xff\xff", b"\x12\x02\xff\xff", _hello().SerializeToString()[:-1], b"")
    unadmitted = _parts(1 << 20, PART_BYTES)

    async def scenario() -> None:
        async with running_gateway(tmp_path / "patient", MemoryRegistry()) as address:
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                code, said = await _refusal(address, small, compression=compression)
                assert (code in ("UNIMPLEMENTED", "INTERNAL"), said) == (True, ""), code
            assert (await _refusal(address, large))[0] == "RESOURCE_EXHAUSTED"
            for message in undecodable[:-1]:
                assert await _refusal(address, message) == ("FAILED_PRECONDITION", "PAYLOAD_INVALID")
            assert await _refusal(address, undecodable[-1]) == ("FAILED_PRECONDITION", "HEADER_INVALID")
        async with running_gateway(tmp_path / "hurried", MemoryRegistry(), hello_seconds=0.5) as address:
            assert await _refusal(address, *unadmitted) == ("FAILED_PRECONDITION", "HELLO_MISSING")
            assert await _refusal(address) == ("FAILED_PRECONDITION", "HELLO_MISSING")

    asyncio.run(scenario())


PARTS = {
    "more than a batch": (300 << 20, [PART_BYTES], "PAYLOAD_INVALID"),
    "more than there is": (2**64 - 1, [PART_BYTES], "PAYLOAD_INVALID"),
    "less than a part": (100, [100], "PAYLOAD_INVALID"),
    "a short one": (1 << 20, [PART_BYTES, 1], "PAYLOAD_INVALID"),
    "an empty one": (1 << 20, [0], "PAYLOAD_INVALID"),
    "one too long": (PART_BYTES + 5, [PART_BYTES, 6], "PAYLOAD_INVALID"),
    "no message": (PART_BYTES + 5, [PART_BYTES, 5], "PAYLOAD_INVALID"),
}


@pytest.mark.parametrize("lie", PARTS)
def test_parts_when_they_make_no_message_then_their_stream_ends(tmp_path: Path, lie: str) -> None:
    whole_bytes, sizes, code = PARTS[lie]
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            for part in _parts(whole_bytes, *sizes):
                await stream.call.write(part)
            assert (await stream.expect_error()).code == code
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())


@pytest.mark.parametrize("is_first", [True, False])
def test_part_when_its_message_has_another_payload_too_then_its_stream_ends(tmp_path: Path, *, is_first: bool) -> None:
    """Whoever parses it sees the last one."""
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    part = StreamResponse(part=MessagePart(whole_bytes=1 << 20, data=b"x")).SerializeToString()
    error = StreamResponse(error=Error(code="X")).SerializeToString()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.call.write(part + error if is_first else error + part)
            assert (await stream.expect_error()).code == ("PAYLOAD_INVALID" if is_first else "HEADER_INVALID")
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())


def test_parts_when_they_stall_then_their_stream_ends_and_others_do_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stream.PART_SECONDS", 2.0)
    monkeypatch.setattr("gateway.backlog.MAX_PARTS_BYTES", 3 * PART_BYTES)
    registry = MemoryRegistry()
    for tenant in ("acme", "globex"):
        registry.want(tenant, "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop") as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            held = [await hostile.open("MySQLClient", "shop") for _ in range(1)]
            for part in _parts(200 << 20, *[PART_BYTES] * 6):
                await held[0].call.write(part)
            stream, run = await honest.open_binlog("shop")
            rows = rows_batch([1], note=random.Random(1).randbytes(3 << 20).hex())
            await stream.send_batch(change_batch(run, 1, "orders", rows))
            await stream.send(cut_end=cut_end(run, 1, 1))
            await stream.expect("cut_committed")
            assert (await held[0].expect_error()).code == "MESSAGE_STALLED"

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1]


def test_a_message_when_a_byte_of_it_becomes_a_hundred_then_it_is_not_parsed(tmp_path: Path) -> None:
    """16 MiB of empty tables."""
    header = Header(tenant="acme", agent="agent-1", request_type=RequestType.Control_Config, sequence=2)

    async def scenario() -> None:
        async with running_gateway(tmp_path, MemoryRegistry()) as address, scripted_agent(address, "shop") as agent:
            stream = await agent.open("Control_Config")
            await stream.expect("hello_ack")
            header.session = agent.session
            state = b"\x1a\x00" * (7 << 20)  # EffectiveState.tables
            payload = length_delimited(StreamResponse.EFFECTIVE_STATE_FIELD_NUMBER, len(state)) + state
            for part in in_parts(StreamResponse(header=header).SerializeToString() + payload):
                await stream.call.write(part)
            error = await stream.expect_error()
            assert (error.code, error.found) == ("PAYLOAD_INVALID", "more than 1000000 fields")

    asyncio.run(scenario())


LONG = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77," * (200 << 10 >> 5)
TABLE = TableName(database="shop", table="orders")
OTHER_TABLE = TableName(database="shop", table="secrets")
#: made where they are wanted: each worker imports this, and messages of 200,000 parts take it seconds
ENDS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "a position of 4 MiB": ("PAYLOAD_INVALID", lambda: {"position": Position(kind="mysql", text="x" * (4 << 20))}),
    "a position of a start of 300 KiB": (
        "PAYLOAD_INVALID",
        lambda: {"started": [TableStarted(table=TABLE, position=Position(text="x" * (300 << 10)))]},
    ),
    "50,000 tables started that nobody desires": (
        "TABLE_NOT_DESIRED",
        lambda: {"started": [TableStarted(table=TableName(database="shop", table=f"t{n}")) for n in range(50_000)]},
    ),
    "one table started 50,000 times": ("PAYLOAD_INVALID", lambda: {"started": [TableStarted(table=TABLE)] * 50_000}),
    "a table stopped that nobody desires": (
        "TABLE_NOT_DESIRED",
        lambda: {"stopped": [TableStopped(table=OTHER_TABLE)]},
    ),
    "a table stopped twice": ("PAYLOAD_INVALID", lambda: {"stopped": [TableStopped(table=TABLE)] * 2}),
    "a table ahead that nobody desires": ("TABLE_NOT_DESIRED", lambda: {"ahead": [Ahead(tables=[OTHER_TABLE])]}),
    "a table ahead at two places": ("PAYLOAD_INVALID", lambda: {"ahead": [Ahead(tables=[TABLE])] * 2}),
    "positions of 5 MiB in all": (
        "PAYLOAD_INVALID",
        lambda: {"ahead": [Ahead(position=Position(text=f"{n}" + "x" * (200 << 10))) for n in range(25)]},
    ),
    "events that become more than a log entry's share": (
        "PAYLOAD_INVALID",
        lambda: {"events": [table_event(n, "ALTERED") for n in range(1, 200_001)], "last_gsn": 200_000},
    ),
}


@pytest.mark.parametrize("lie", ENDS)
def test_a_cut_when_it_says_more_than_its_run_can_then_it_is_refused_and_nothing_is_committed(
    tmp_path: Path, lie: str
) -> None:
    """H1: one cut made 2.4 GiB of database; 200,000 starts of tables that nobody desires were not refused."""
    code, make = ENDS[lie]
    said = make()
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            last_gsn, changes = said.get("last_gsn", 0), {name: said[name] for name in said if name != "last_gsn"}
            await stream.send(cut_end=cut_end(run, 1, last_gsn, **changes))
            error = await stream.expect_error()
            assert error.code == code, error

    asyncio.run(scenario())
    assert read_log(tmp_path) == []


def test_a_cut_when_it_has_all_that_is_allowed_then_the_database_grows_by_its_position_and_no_more(
    tmp_path: Path,
) -> None:
    """H1: each of 300 tables stored a position of 4 MiB."""
    database, registry = open_registry(tmp_path / "control.db")
    names = [f"table_{number}" for number in range(300)]
    want(database, HOSTILE, *names)
    before_bytes = (tmp_path / "control.db").stat().st_size

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path / "landing", registry) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            for cut in range(1, 6):
                position = Position(kind="mysql", text=f"{cut}{LONG}"[: 250 << 10])
                numbered = [table_event(cut * 1_000 + n, "ALTERED", table=name) for n, name in enumerate(names)]
                await stream.send(cut_end=cut_end(run, cut, cut * 1_000 + 300, position=position, events=numbered))
                await stream.expect("cut_committed")

    asyncio.run(scenario())
    database.close()
    grown_bytes = (tmp_path / "control.db").stat().st_size - before_bytes
    assert grown_bytes < 8 << 20, f"{grown_bytes} bytes"


def test_an_open_cut_when_its_agent_says_nothing_more_then_it_is_dropped_and_the_source_begins_again(
    tmp_path: Path,
) -> None:
    """H3: rows of open cuts stayed in memory for as long as their agent liked."""
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, open_cut_seconds=0.3) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch([1])))
            assert (await stream.expect_error()).code == "CUT_STALLED"
            stream, run = await agent.open_binlog("shop")
            with pytest.raises(TimeoutError):  # without rows it may be silent for ever
                await stream.expect("error", seconds=1)
            await eventually("its rows to go", lambda: data_files(tmp_path) == [])
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")  # a patient one: whoever is slow here is no hostile agent
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())
    assert (landed_gsns(tmp_path), len(data_files(tmp_path))) == ([1], 1)


def test_credit_when_rows_are_compressed_then_it_counts_them_as_they_were(tmp_path: Path) -> None:
    """H3: it counted the bytes of the wire, of which a hundredth may be enough."""
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, credit_window_bytes=1 << 20) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            batch = change_batch(run, 1, "orders", rows_batch(range(1, 12_000), note="x" * 100))
            assert len(batch.rows) < batch.rows_bytes // 10
            assert batch.rows_bytes > 1 << 20
            await stream.send_batch(batch)
            assert stream.credit < 0
            await stream.wait_credit(least=1 << 20)  # the rows are out of memory: all of it comes back
            assert stream.credit == 1 << 20
            lying = change_batch(run, 1, "orders", rows_batch(range(1, 10)))
            lying.rows, lying.rows_bytes = random.Random(1).randbytes(200_000), 1_000
            await stream.send_batch(lying)
            assert (await stream.expect_error()).code == "BATCH_TOO_LARGE"

    asyncio.run(scenario())
    assert data_files(tmp_path) == []


def test_gathered_rows_when_many_hold_some_then_their_sum_stays_within_the_budget() -> None:
    gathered = Gathered(max_bytes=96 << 20)
    held = [0] * 100
    for _ in range(200):
        for number in range(len(held)):
            most_bytes = min(64 << 20, gathered.share_bytes())
            held[number] += 1 << 18
            gathered.change(1 << 18)
            if held[number] > most_bytes:
                gathered.change(most_bytes // 2 - held[number])
                held[number] = most_bytes // 2
    assert max(held) > 0
    assert sum(held) <= (96 << 20) + len(held) * LEAST_BYTES


def test_sources_when_their_streams_have_ended_then_nothing_of_them_stays_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept of each source that ever came grew without a bound."""
    kept: list[Any] = []

    def keeping(made: type) -> Any:
        def make(*arguments: Any) -> Any:
            kept.append(made(*arguments))
            return kept[-1]

        return make

    for module, made in ((server, Committer), (server, PendingChunks), (streams_service, Admission)):
        monkeypatch.setattr(module, made.__name__, keeping(made))
    registry = MemoryRegistry()
    names = [f"source-{number}" for number in range(20)]
    for name in names:
        registry.want("acme", name, "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, *names) as agent:
            for name in names:
                stream, run = await agent.open_binlog(name)
                client, _ = await agent.open_client(name)
                await commit_cut(stream, run, 1, [1])
                await stream.close()
                await client.close()

            def sizes() -> list[int]:
                committer, pending, _ = kept
                maps = (committer._expected, pending._next_numbers, pending._unsettled, pending._streams)
                return [len(each) for each in maps]

            assert len(kept) == 3
            kept.sort(key=lambda each: ("Committer", "PendingChunks", "Admission").index(type(each).__name__))
            await eventually("all to be freed", lambda: sizes() == [0, 0, 0, 0])
        assert not kept[-1]._streams
        assert not kept[-1]._of_tenant

    asyncio.run(scenario())


def test_streams_when_there_are_too_many_then_the_next_is_refused_and_those_that_are_open_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admission.MAX_STREAMS_OF_AGENT", 3)
    registry = MemoryRegistry()
    for tenant in ("acme", "globex"):
        registry.want(tenant, "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, max_streams=6) as address,
            scripted_agent(address, "shop") as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            stream, run = await honest.open_binlog("shop")
            for _ in range(2):
                await (await hostile.open("Control_Heartbeat")).expect("hello_ack")
            assert (await (await hostile.open("Control_Heartbeat")).expect_error()).code == "TOO_MANY_STREAMS"
            await (await honest.open("Control_Heartbeat")).expect("hello_ack")
            refused = await _refusal(address, _hello().SerializeToString())
            assert refused == ("ABORTED", "TOO_MANY_STREAMS")
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())
