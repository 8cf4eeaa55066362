"""What the engine does about dumps of any source: orders, priorities, waits. The source is one in memory."""

import time
from pathlib import Path

from menura.v1 import snapshot_pb2

from tests.agent.dump_ledger import Dump
from tests.agent.dumping import SLOW, agent_inside, lake_at, wait_dumped, wait_status
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import ORDERS, config, create, database, gateway, selected
from tests.memory_source.database import MemoryDatabase

__all__ = ["database", "gateway"]

Status = snapshot_pb2.DumpStatus


def test_dump_when_paused_and_resumed_then_it_goes_on_where_it_was(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = ORDERS
    create(database, table, rows=3000)
    gateway.sync("shop", table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=100)
    with agent_inside(config(tmp_path, gateway.address)):
        dump = gateway.dump("shop", "slow", table, limits=slow)
        ledger = gateway.source("shop").ledger
        gateway.wait(lambda: len(ledger.chunks) > 2)
        told = wait_status(gateway, dump, "own limit is 100 rows")
        assert (told.state, told.held) == (Status.READING, Status.RATE)
        gateway.order("shop", dump, paused=True)
        gateway.wait(lambda: dump.statuses[-1].state == Status.PAUSED)
        gateway.order("shop", dump, paused=False, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        assert lake_at(gateway, dump, ("id",), dump.dumped_cut) == selected(database, table)
        assert ledger.received_rows < 3000 + 3 * 100


def test_dump_when_the_stream_does_not_run_then_it_waits_and_says_so(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = ORDERS
    create(database, table, rows=1000)
    dump = gateway.dump("shop", "early", table)
    with agent_inside(config(tmp_path, gateway.address)):
        assert wait_status(gateway, dump, "the stream of the source does not run").held == Status.STREAM
        gateway.sync("shop", table, now=True)
        wait_dumped(gateway, dump)
    assert lake_at(gateway, dump, ("id",), dump.dumped_cut) == selected(database, table)


def test_dumps_when_one_has_a_higher_priority_then_it_is_read_first(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    tables = [("shop", f"t{number}") for number in range(3)]
    for table in tables:
        create(database, table, rows=1500)
    gateway.sync("shop", *tables, now=True)
    ledger = gateway.source("shop").ledger
    dumps: list[Dump] = [
        gateway.dump("shop", f"dump-{number}", table, priority=number, paused=True, limits=SLOW)
        for number, table in enumerate(tables)
    ]
    with agent_inside(config(tmp_path, gateway.address, dump={"workers": 1})):
        for dump in dumps:  # each has its plan and its start, and a chunk
            gateway.order("shop", dump, paused=False)
            gateway.wait(lambda of=dump: any(chunk.dump == of.dump for chunk in ledger.chunks))
            gateway.wait(lambda of=dump: any(status.state == Status.READING for status in of.statuses))
            gateway.order("shop", dump, paused=True)
            gateway.wait(lambda of=dump: of.statuses[-1].state == Status.PAUSED)
        begun = time.time_ns() // 1000
        gateway.order("shop", *dumps, paused=False, limits=snapshot_pb2.DumpLimits())
        for dump in dumps:
            wait_dumped(gateway, dump)
    chunks = sorted(ledger.chunks, key=lambda chunk: chunk.end.read_at_us)
    read = [chunk.dump for chunk in chunks if chunk.end.read_at_us > begun]
    assert read == sorted(read, reverse=True)
