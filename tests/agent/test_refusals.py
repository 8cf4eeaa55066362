"""What a source's heartbeats say while the gateway refuses what it sends, and when they say it no more."""

from pathlib import Path

import pytest
from menura.roles import Role
from menura.v1 import config_pb2, error_pb2, stream_pb2

from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import ORDERS, config, create, database, gateway, order
from tests.memory_source.database import Change, MemoryDatabase

__all__ = ["database", "gateway"]


def refusal(code: str, *, terminal: bool) -> error_pb2.Error:
    return error_pb2.Error(code=code, doing="landing a cut", found="it", remedy="Do this", terminal=terminal)


def is_well(status: config_pb2.SourceStatus) -> bool:
    return not status.HasField("error") and status.HasField("lag_us") and status.lag_us == 0


def statuses(gateway: GatewayDouble, since: int = 0) -> list[config_pb2.SourceStatus]:
    """Of each heartbeat behind so many."""
    return [status for beat in gateway.heartbeats[since:] for status in beat.sources]


def wait_well(gateway: GatewayDouble) -> None:
    since = len(gateway.heartbeats)
    gateway.wait(lambda: any(map(is_well, statuses(gateway, since))))


def sent_cuts(gateway: GatewayDouble) -> int:
    """With rows, committed or not."""
    messages = map(stream_pb2.StreamResponse.FromString, gateway.messages)
    return sum(message.cut_end.transaction_count > 0 for message in messages)


def test_source_when_the_gateway_refuses_what_it_sends_again_and_again_then_it_says_so_until_that_lands(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """The start cut of each run is committed meanwhile, and the log is read to its end."""
    create(database)
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with agent_inside(config(tmp_path, gateway.address)):
        wait_well(gateway)
        kept = record.committed[-1].cut
        gateway.lose_cuts("shop", last_kept_cut=kept)
        before = sent_cuts(gateway)
        database.commit(Change(ORDERS, None, order(1, "first")))
        gateway.wait(lambda: sent_cuts(gateway) > before)
        for _ in range(3):
            before, kept = sent_cuts(gateway), kept + 1
            gateway.lose_cuts("shop", last_kept_cut=kept)
            gateway.refuse("shop", Role.CHANGES, refusal("PAYLOAD_INVALID", terminal=True))
            gateway.wait(lambda: record.committed[-1].cut == kept and sent_cuts(gateway) > before)  # noqa: B023
            # heartbeats of before may be on their way
            gateway.wait(lambda: record.status.error.code == "GATEWAY_REFUSED")
            since = len(gateway.heartbeats)
            gateway.wait(lambda: len(gateway.heartbeats) > since + 1)  # noqa: B023
            for status in statuses(gateway, since):
                assert (status.error.code, status.error.terminal) == ("GATEWAY_REFUSED", True)
                assert "PAYLOAD_INVALID: landing a cut: it" in status.error.found and status.error.remedy == "Do this"
                assert not status.HasField("lag_us")
        gateway.lose_cuts("shop", loses=False)
        gateway.drop("shop", Role.CHANGES)
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        wait_well(gateway)


def test_source_when_the_gateway_ends_its_stream_and_takes_the_next_one_then_nothing_is_left_of_it(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        wait_well(gateway)
        replicates = gateway.source("shop").replicates
        gateway.refuse("shop", Role.CHANGES, refusal("LEASE_LOST", terminal=False))
        gateway.wait(lambda: gateway.source("shop").replicates > replicates)
        wait_well(gateway)


def test_source_when_more_tables_are_desired_than_it_takes_then_it_says_so(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.runtime.requests.MAX_SYNCED_TABLES", 1)
    create(database)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        wait_well(gateway)
        gateway.sync("shop", ("shop", "items"), now=True)
        gateway.wait(lambda: gateway.source("shop").status.error.code == "GATEWAY_REFUSED")
        assert "more than 1 tables" in gateway.source("shop").status.error.found
        gateway.unsync("shop", ("shop", "items"))
        wait_well(gateway)


def test_catalog_when_the_gateway_refuses_it_then_the_source_has_a_warning_and_goes_on(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.snapshot.plugin.LOOK_SECONDS", 0.2)
    create(database)
    gateway.sync("shop", ORDERS, oldest=True)
    error = refusal("PAYLOAD_INVALID", terminal=True)

    def warnings() -> list[str]:
        effective = gateway.source("shop").effective
        return [warning.code for warning in effective[-1].warnings] if effective else []

    with agent_inside(config(tmp_path, gateway.address)):
        gateway.refuses = lambda response: error if response.WhichOneof("payload") == "cartography" else None
        gateway.refuse("shop", Role.CATALOG, error)
        gateway.wait(lambda: warnings() == ["GATEWAY_REFUSED"])
        wait_well(gateway)
        gateway.refuses = lambda response: None
        gateway.wait(lambda: not warnings())
