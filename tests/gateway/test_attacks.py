"""What was done to the gateway by hostile clients, over real gRPC: each is refused, and harms nobody else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.registry import SourceKey
from tests.gateway.harness import landed_gsns, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import chunk_end, commit_cut, cut_end, dump_plan, scripted_agent
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
