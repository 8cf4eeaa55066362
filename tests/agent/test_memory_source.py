"""The engine with a source in memory: nothing of it is MySQL's."""

import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import yaml
from menura.change_batch import ChangeType
from menura.roles import Role
from menura.v1 import changes_pb2, config_pb2, snapshot_pb2

from agent.snapshot.statuses import GATEWAY_WAITS
from tests.agent.dump_ledger import merged
from tests.agent.dumping import SLOW, agent_inside, poll, wait_dumped, wait_status
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import (
    COLUMNS,
    ORDERS,
    TRUTHS,
    Writers,
    config,
    create,
    database,
    gateway,
    lake,
    order,
    selected,
)
from tests.agent.test_replication import last_state
from tests.agent.wire import read_table
from tests.memory_source.database import Change, Column, Definition, MemoryDatabase, Table

__all__ = ["database", "gateway"]

_Kind = changes_pb2.TableEvent
_State = config_pb2.TableState


def rows_of(gateway: GatewayDouble, table: Table = ORDERS) -> list[tuple[int, object]]:
    return [(int(str(row["_change_type"])), row["id"]) for row in gateway.rows("shop", table)]


def current(gateway: GatewayDouble, table: Table) -> dict[tuple[object, ...], dict[str, object]]:
    return merged(gateway.rows("shop", table), [], ("id",))


def test_changes_when_a_sync_begins_at_the_oldest_then_every_row_comes_in_order(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=2)
    database.commit(Change(ORDERS, order(3, "first"), order(3, "new")), Change(ORDERS, order(6, "first"), None))
    gateway.sync("shop", ORDERS, oldest=True)
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 5)
        create(database, ("shop", "items"), rows=1)
        gateway.sync("shop", ("shop", "items"), oldest=True)
        gateway.wait(lambda: gateway.rows("shop", ("shop", "items")))
    insert, before, after, delete = ChangeType.insert, ChangeType.update_preimage, ChangeType.update_postimage, 3
    assert rows_of(gateway) == [(insert, 3), (insert, 6), (before, 3), (after, 3), (delete, 6)]
    assert [event.kind for event in gateway.events("shop", ORDERS)] == [_Kind.CREATED]
    assert {row["gift"] for row in gateway.rows("shop", ORDERS)} == {True, False}
    record = gateway.source("shop")
    assert record.hello is not None and (record.hello.flavor, record.hello.address) == ("memory", "memory:shop")
    assert {card.table.table for part in record.cartography for card in part.tables} >= {"orders"}
    assert record.committed[-1].position.kind == "memory"


@pytest.mark.parametrize(("compression", "begins"), [("lz4", b"\x04\x22\x4d\x18"), ("zstd", b"\x28\xb5\x2f\xfd")])
def test_rows_when_a_compression_is_configured_then_changes_and_dumps_come_in_its_frames(
    database: MemoryDatabase,
    gateway: GatewayDouble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: str,
    begins: bytes,
) -> None:
    received: dict[str, set[bytes]] = {}
    for module in ("gateway_double", "dump_ledger"):

        def read(frame: bytes, size_bytes: int, module: str = module) -> pa.Table:
            received.setdefault(module, set()).add(frame[:4])
            return read_table(frame, size_bytes)

        monkeypatch.setattr(f"tests.agent.{module}.read_table", read)
    create(database, rows=3)
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway.address)
    written = yaml.safe_load(path.read_text())
    written["gateway"]["compression"] = compression
    path.write_text(yaml.safe_dump(written))
    with agent_inside(path):
        wait_dumped(gateway, gateway.dump("shop", "whole", ORDERS))
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 3)
    assert received == {"gateway_double": {begins}, "dump_ledger": {begins}}


def test_changes_when_streams_break_and_tables_join_then_nothing_is_lost_or_twice(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    tables = [("shop", f"t{number}") for number in range(4)]
    for table in tables:
        create(database, table)
    with agent_inside(config(tmp_path, gateway.address)), Writers(database, tables[0], 1, 500) as writers:
        for number, table in enumerate(tables):
            with Writers(database, table, number, 500) if number else Writers(database, tables[1], 9, 500):
                gateway.sync("shop", table, oldest=True)
                before = writers.transactions
                gateway.wait(lambda least=before: writers.transactions > least + 30)
                gateway.drop("shop", Role.CHANGES)
    with agent_inside(config(tmp_path, gateway.address)):
        for table in tables:
            poll(lambda of=table: current(gateway, of) == selected(database, of))
            assert current(gateway, table) == selected(database, table)
    numbers = [row["_gsn"] for table in tables for row in gateway.rows("shop", table)]
    assert len(numbers) == len(set(numbers))


@pytest.mark.history
@pytest.mark.parametrize("seed", range(3))
def test_dump_when_others_write_and_streams_break_then_chunks_and_changes_are_the_table(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, seed: int
) -> None:
    create(database, rows=1500)
    gateway.sync("shop", ORDERS, dump="first")
    ledger = gateway.source("shop").ledger
    with agent_inside(config(tmp_path, gateway.address)):
        with Writers(database, ORDERS, seed, 6000):
            dump = gateway.dump("shop", "first", ORDERS, limits=SLOW)
            for chunks, role in ((1, Role.CATALOG), (3, Role.CHANGES)):
                gateway.wait(lambda least=chunks: len(ledger.chunks) > least)
                gateway.drop("shop", role)
                assert not dump.is_over
            gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        poll(lambda: lake(gateway, dump) == selected(database, ORDERS))
        assert lake(gateway, dump) == selected(database, ORDERS)
    assert dump.plan is not None and len(dump.plan.ranges) == 3
    assert {name for chunk in ledger.chunks for name in chunk.schema_ids} == {
        batch.schema_id for batch in gateway.source("shop").batches
    }


def test_dump_when_a_table_has_no_key_then_it_begins_with_its_snapshot(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    unkeyed = tuple(Column(column.name, column.arrow_format) for column in COLUMNS)
    create(database, rows=300, columns=unkeyed)
    create(database, ("shop", "items"))
    gateway.sync("shop", ("shop", "items"), now=True)
    with agent_inside(config(tmp_path, gateway.address)), Writers(database, ("shop", "items"), 2, 500):
        gateway.wait(lambda: gateway.source("shop").committed)
        gateway.sync("shop", ORDERS, dump="whole")
        with Writers(database, ORDERS, 3, 2000):
            dump = gateway.dump("shop", "whole", ORDERS)
            wait_dumped(gateway, dump)
        poll(lambda: lake(gateway, dump) == selected(database, ORDERS))
        assert lake(gateway, dump) == selected(database, ORDERS)
        gateway.wait(
            lambda: {state.state for state in gateway.source("shop").effective[-1].tables} == {_State.STREAMING}
        )
    (chunk,) = gateway.source("shop").ledger.chunks
    assert dump.dumped is not None and dump.dumped.removes_rows and chunk.gsn == dump.dumped.gsn + 1


@pytest.mark.history
def test_dump_when_the_table_changes_in_the_middle_then_it_is_right_or_ends(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=600)
    wider = (*COLUMNS, Column("note", "u"), Column("sent", "b", earlier=False))
    gateway.sync("shop", ORDERS, now=True)
    ledger = gateway.source("shop").ledger
    with agent_inside(config(tmp_path, gateway.address)):
        dump = gateway.dump("shop", "first", ORDERS, limits=SLOW)
        gateway.wait(lambda: len(ledger.chunks) > 1)
        database.commit(Definition(ORDERS, _Kind.ALTERED, wider))
        gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        (altered,) = gateway.events("shop", ORDERS)[1:2]
        earlier = [(column.WhichOneof("earlier_rows"), column.text) for column in altered.columns]
        assert earlier == [*[(None, "")] * len(COLUMNS), ("is_null", ""), ("text", "false")]
        last = [
            Change(ORDERS, None, order(number, "last") | {"note": "x", "sent": TRUTHS[number % 3]})
            for number in range(200)
        ]
        database.commit(Definition(ORDERS, _Kind.TRUNCATED), *last)
        poll(lambda: lake(gateway, dump) == selected(database, ORDERS))
        assert lake(gateway, dump) == selected(database, ORDERS)
        again = gateway.dump("shop", "again", ORDERS, limits=SLOW)
        gateway.wait(lambda: again.plan)
        database.commit(Definition(ORDERS, _Kind.DROPPED))
        gateway.wait(lambda: again.failed)
    assert again.failed is not None and again.failed.code == "DUMP_TABLE_GONE"


def test_dump_when_its_source_has_no_snapshots_then_it_fails_and_its_remedy_brings_the_rows(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=5)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address, snapshots="none")):
        dump = gateway.dump("shop", "none", ORDERS)
        gateway.wait(lambda: dump.failed)
        assert dump.failed is not None and dump.failed.code == "DUMP_SNAPSHOT_IMPOSSIBLE"
        assert dump.failed.remedy.endswith("menura sync start shop shop.orders --from oldest")
        assert "sync stop shop shop.orders and then" in dump.failed.remedy
        gateway.unsync("shop", ORDERS)
        gateway.sync("shop", ORDERS, oldest=True)
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 5)


@pytest.mark.parametrize("policy", ["reread", "stop"])
def test_log_when_it_is_purged_and_its_source_has_no_snapshots_then_no_dump_is_ordered(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, policy: str
) -> None:
    create(database, rows=1)
    gateway.sync("shop", ORDERS, oldest=True)
    agent = config(tmp_path, gateway.address, snapshots="none", unlogged_changes=policy)
    with agent_inside(agent):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
    gateway.wait_gone("shop")
    database.commit(Change(ORDERS, None, order(100, "missed")))
    database.purge()
    committed = gateway.source("shop").committed
    with agent_inside(agent):
        if policy == "stop":
            gateway.wait(lambda: committed[-1].stopped)
            (stop,) = committed[-1].stopped
            assert stop.error.remedy.endswith("menura sync start shop shop.orders --from oldest")
        else:
            gateway.wait(lambda: gateway.events("shop", ORDERS)[-1].kind == _Kind.LOG_GAP)
            assert not gateway.events("shop", ORDERS)[-1].reread


def test_log_when_it_is_purged_while_nobody_reads_then_tables_go_on_behind_a_gap(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    gateway.sync("shop", ORDERS, oldest=True)
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
    gateway.wait_gone("shop")
    database.commit(Change(ORDERS, None, order(100, "missed")))
    database.purge()
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: gateway.events("shop", ORDERS)[-1].kind == _Kind.LOG_GAP)
        gap = gateway.events("shop", ORDERS)[-1]
        dump = gateway.dump("shop", "reread", ORDERS)
        wait_dumped(gateway, dump)
    assert (gap.gap_from, gap.gap_to) == (f"{database.log_name}:2", f"{database.log_name}:3")
    assert gap.reread and "the log begins at 3" in gap.unlogged_changes
    assert lake(gateway, dump) == selected(database, ORDERS)


def test_log_when_it_is_another_one_then_nothing_is_read_before_somebody_accepts_it(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        database.replace()
        database.commit(Change(ORDERS, None, order(7, "other")))
        gateway.wait(lambda: record.effective[-1].other_server.identity)
        assert record.effective[-1].error.code == "SOURCE_REBUILT"
        assert record.effective[-1].other_server.server == database.log_name
        state = last_state(gateway, ORDERS)
        assert state is not None and state.state == _State.WAITING
        gateway.accept("shop", record.effective[-1].other_server.identity)
        gateway.wait(lambda: gateway.events("shop", ORDERS)[-1].kind == _Kind.LOG_GAP)
        dump = gateway.dump("shop", "reread", ORDERS)
        wait_dumped(gateway, dump)
    assert lake(gateway, dump) == selected(database, ORDERS)


def test_sync_when_its_position_is_no_position_then_that_table_stops_alone(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    create(database, ("shop", "items"), rows=1)
    gateway.sync("shop", ORDERS, oldest=True)
    gateway.sync("shop", ("shop", "items"), position_text="somewhere")
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        gateway.wait(lambda: [stop for cut in gateway.source("shop").committed for stop in cut.stopped])
    (stop,) = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
    assert (stop.table.table, stop.error.code) == ("items", "POSITION_INVALID")


def test_filter_when_it_keeps_back_a_column_and_a_table_then_neither_leaves_the_host(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=2)
    create(database, ("shop", "secrets"), rows=2)
    filter_ = {"orders": {"ignored_columns": ["name"]}, "secrets": None}
    gateway.sync("shop", ORDERS, ("shop", "secrets"), oldest=True)
    with agent_inside(config(tmp_path, gateway.address, filter=filter_)):
        dump = gateway.dump("shop", "filtered", ORDERS)
        wait_dumped(gateway, dump)
        gateway.wait(lambda: (state := last_state(gateway, ("shop", "secrets"))) and state.state == _State.DENIED)
    (state,) = [one for one in gateway.source("shop").effective[-1].tables if one.table.table == "orders"]
    assert state.ignored_columns == ["name"]
    assert all("first" not in str(row) for row in gateway.rows("shop", ORDERS))
    dumped = [row for chunk in gateway.source("shop").ledger.chunks for row in chunk.rows]
    assert len(dumped) == 2 and all("first" not in str(row) for row in dumped)


def test_credit_when_none_is_granted_then_rows_wait_and_the_state_tells_it(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=100)
    gateway.grants_credit = False
    gateway.sync("shop", ORDERS, oldest=True)
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: gateway.source("shop").status.credit_wait_us)
        told = gateway.source("shop").status
        assert (told.HasField("credit_bytes"), told.credit_bytes, told.restarts) == (True, 0, 0)
        assert not gateway.rows("shop", ORDERS)
        dump = gateway.dump("shop", "first", ORDERS)
        gateway.grant("shop", 1)
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 100)
        wait_status(gateway, dump, GATEWAY_WAITS)
        gateway.grant("shop", 1 << 20, Role.CATALOG)
        gateway.grant("shop", 1 << 20)
        wait_dumped(gateway, dump)
        gateway.wait(lambda: gateway.source("shop").status.credit_bytes and gateway.source("shop").status.decode_cpu_us)


def test_dump_when_it_is_not_its_turn_then_it_waits_says_so_and_begins_by_itself(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_seconds = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_seconds)
    monkeypatch.setattr("agent.snapshot.tasks.time", clock)
    create(database, rows=5)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        dump = gateway.dump("shop", "later", ORDERS, begins_in_seconds=3_600)
        wait_status(gateway, dump, "it is not its turn")
        assert not dump.started_gsn
        later_seconds = 3_600
        wait_dumped(gateway, dump)
