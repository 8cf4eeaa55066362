"""Tables that stop in a stream, at the transaction before what they can't go through; the others go on."""

from pathlib import Path
from typing import Any

import pytest
from menura.v1 import changes_pb2

from agent.sources.postgresql import changes
from agent.sources.postgresql.positions import parse_lsn
from agent.sources.postgresql.server.wire import WalStream
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    Kind,
    begin,
    create,
    current,
    events,
    looks_often,
    run,
    stopped,
    streaming,
)
from tests.postgres import SourceServer

ITEMS = ("public", "items")
#: of a message of an application, before its prefix: kind, flags, LSN
_MESSAGE_HEADER_BYTES = 10


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)


def wait_stopped(gateway: GatewayDouble) -> changes_pb2.TableStopped:
    gateway.wait(lambda: stopped(gateway, ORDERS))
    (stop,) = stopped(gateway, ORDERS)
    return stop


def goes_on(gateway: GatewayDouble, postgres: SourceServer) -> None:
    run(postgres, "INSERT INTO items VALUES (77, 'other', '')")
    gateway.wait(lambda: (77,) in current(gateway, ITEMS))


def test_column_when_a_rename_in_a_transaction_reveals_it_then_the_table_stops_before_that_transaction(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    rules = {"orders": {"ignored_columns": ["note"]}}
    with streaming(tmp_path, gateway, postgres, filter=rules):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "INSERT INTO orders VALUES (1, 'shown', 'hidden')")
        gateway.wait(lambda: current(gateway, ORDERS))
        run(
            postgres,
            "BEGIN; INSERT INTO items VALUES (1, 'both', ''); INSERT INTO orders VALUES (2, 'begun', 'hidden');"
            " ALTER TABLE orders RENAME note TO remark; INSERT INTO orders VALUES (3, 'revealed', 'hidden'); COMMIT",
        )
        stop = wait_stopped(gateway)
        assert stop.error.code == "TABLE_IGNORED_RENAMED"
        gateway.wait(lambda: (1,) in current(gateway, ITEMS))
        goes_on(gateway, postgres)
        assert current(gateway, ORDERS) == {(1,): {"id": 1, "name": "shown"}}
        cut = next(end for end in gateway.source(SOURCE).committed if end.stopped)
        assert parse_lsn(stop.position.text) <= parse_lsn(cut.position.text)
    assert not any("hidden" in str(row) for row in gateway.rows(SOURCE, ORDERS))


def test_rows_when_written_anew_and_the_policy_is_to_stop_then_the_table_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=2)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "ALTER TABLE orders ALTER COLUMN name TYPE int USING id")
        stop = wait_stopped(gateway)
        assert stop.error.code == "TABLE_ROWS_UNLOGGED"
        assert not events(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        goes_on(gateway, postgres)


def test_table_when_another_one_takes_its_name_and_the_policy_is_to_stop_then_it_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    create(postgres, "others", rows=1)
    run(postgres, "CREATE PUBLICATION menura FOR ALL TABLES")
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        begin(gateway, ORDERS, ITEMS)
        run(
            postgres,
            "INSERT INTO orders VALUES (1, 'before', '')",
            "BEGIN; ALTER TABLE orders RENAME TO former; ALTER TABLE others RENAME TO orders;"
            " INSERT INTO orders VALUES (2, 'after', ''); COMMIT",
        )
        assert "another table has its name" in wait_stopped(gateway).error.found
        goes_on(gateway, postgres)
        assert (2,) not in current(gateway, ORDERS)


def test_table_when_it_is_published_no_more_and_may_not_be_then_it_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "ALTER TABLE orders OWNER TO postgres", "ALTER PUBLICATION menura DROP TABLE orders")
        assert wait_stopped(gateway).error.code == "TABLE_UNPUBLISHED"
        goes_on(gateway, postgres)


class UnknownMessages:
    """A stream in which messages of an application with a certain prefix are of a kind that nobody knows."""

    def __init__(self, stream: WalStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        size = self._stream.receive_into(buffer, timeout_seconds)
        at = bytes(buffer[:size]).find(b"from the future\0")
        if at >= 0:
            buffer[at - _MESSAGE_HEADER_BYTES] = ord("Z")
        return size


def test_source_when_a_message_is_of_an_unknown_kind_then_it_stops_by_name_and_an_agent_that_knows_it_lacks_nothing(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres)
    record = gateway.source(SOURCE)
    opened = changes.open_wal_stream
    with monkeypatch.context() as patched:
        patched.setattr(changes, "open_wal_stream", lambda *given, **named: UnknownMessages(opened(*given, **named)))
        with streaming(tmp_path, gateway, postgres):
            begin(gateway, ORDERS)
            run(
                postgres,
                "INSERT INTO orders VALUES (1, 'before', '')",
                "BEGIN; INSERT INTO orders VALUES (2, 'in it', '');"
                " SELECT pg_logical_emit_message(true, 'from the future', 'x');"
                " INSERT INTO orders VALUES (3, 'behind it', ''); COMMIT",
                "INSERT INTO orders VALUES (4, 'after', '')",
            )
            gateway.wait(lambda: record.effective and record.effective[-1].error.code == "EVENT_UNKNOWN")
            assert "'Z'" in record.effective[-1].error.found
            gateway.wait(lambda: (1,) in current(gateway, ORDERS))
            assert [row["id"] for row in gateway.rows(SOURCE, ORDERS)] == [1]
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: (4,) in current(gateway, ORDERS))
        assert [row["id"] for row in gateway.rows(SOURCE, ORDERS)] == [1, 2, 3, 4]
        assert not stopped(gateway, ORDERS)
