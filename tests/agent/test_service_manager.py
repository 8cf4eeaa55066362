"""sd_notify(3): what a service manager hears of an agent, over the socket that it listens on."""

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from menura.distributions import version
from menura.v1.config_pb2 import HeartbeatAck
from menura.v1.stream_pb2 import StreamRequest

from agent import pipeline
from agent.config import load
from agent.errors import Defect
from agent.filter import Filter
from agent.runtime import service_manager
from agent.runtime.control import DEFAULT_HEARTBEAT_SECONDS, HeartbeatPlugin
from agent.runtime.movement import MOST_SILENT_SECONDS, Movement
from agent.runtime.service_manager import ServiceManager
from agent.runtime.state import SourceState, SourceStates
from agent.settings import SourceConfig
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import END_SECONDS, running_agent, write_config
from tests.servers import free_port
from tests.stack import wait_for

FOLLOWER = "follower"

VERSION = version("menura")


class Listener:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(END_SECONDS)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().split("\n")

    def until(self, word: str) -> list[str]:
        """All that comes, to the first message with a line that begins with it."""
        heard: list[str] = []
        while not any(line.startswith(word) for line in heard):
            heard += self.next()
        return heard

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening(address: str) -> Iterator[Listener]:
    listener = Listener(address)
    try:
        yield listener
    finally:
        listener.close()


class Turns(threading.Event):
    """Set when the agent is to end; knows how often somebody has waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += threading.current_thread().name == FOLLOWER
        return super().wait(timeout)

    def pass_by(self) -> None:
        """Three whole turns of whoever follows the agent."""
        last = self.waits + 4
        wait_for("turns", lambda: self.waits >= last)


class Supervised:
    moving = True

    def status(self) -> str:
        return "at work\nWATCHDOG=1"

    def moves(self) -> bool:
        return self.moving


@contextmanager
def following(address: str, supervised: service_manager.Supervised) -> Iterator[Turns]:
    """In a thread, which has to end once it is told to."""
    stopping = Turns()
    manager = ServiceManager(address, watchdog_seconds=0.03)
    follower = threading.Thread(target=manager.follow, args=(stopping, supervised), name=FOLLOWER)
    follower.start()
    try:
        yield stopping
    finally:
        stopping.set()
        follower.join(END_SECONDS)
    assert not follower.is_alive()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the log has of it, whatever other tests have done to the loggers above."""
    logger = service_manager.log
    caplog.set_level(logging.WARNING, logger.name)
    monkeypatch.setattr(logger, "disabled", False)
    logger.addHandler(caplog.handler)
    monkeypatch.setattr(logger, "propagate", False)
    return lambda: [record.message for record in caplog.records if record.name == logger.name]


@pytest.mark.parametrize("is_abstract", [False, True])
def test_watchdog_when_the_agent_does_not_move_then_is_not_fed_until_it_does(
    is_abstract: bool, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    address = f"@menura-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    supervised = Supervised()
    with listening(address) as listener, following(address, supervised) as turns:
        assert listener.until("STATUS=at work")[0] == "READY=1"
        listener.until("WATCHDOG=1")
        supervised.moving = False
        assert listener.until("STATUS=does")[-1] == "STATUS=does not move; at work WATCHDOG=1"
        turns.pass_by()
        supervised.moving = True
        assert listener.next() == ["STATUS=at work WATCHDOG=1", "WATCHDOG=1"]
        turns.set()
        listener.until("STOPPING=1")
    assert said() == ["the agent does not move"]


def test_watchdog_when_a_lock_is_never_let_go_then_is_not_fed_and_the_agent_can_be_stopped(
    tmp_path: Path, said: Callable[[], list[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SourceState(SourceConfig(name="shop", kind="mysql", filter=Filter()))
    states = SourceStates()
    states.add(state)
    heartbeat = HeartbeatPlugin(states)
    address = str(tmp_path / "notify")
    try:
        with listening(address) as listener, following(address, Movement(states, heartbeat)) as turns:
            listener.until(f"STATUS=version {VERSION}; gateway not connected; 1 sources")
            with state._lock:
                monkeypatch.setattr(service_manager, "MOST_LOOK_SECONDS", 0.0)
                assert (
                    listener.until("STATUS=does")[-1]
                    == f"STATUS=does not move; version {VERSION}; gateway not connected; 1 sources"
                )
                turns.pass_by()
                turns.set()
                assert listener.next() == ["STOPPING=1"]
    finally:
        heartbeat.stop()
    assert said() == ["the agent does not move"]
    (record,) = (each for each in caplog.records if each.name == "menura.service")
    assert "looking:" in record.__dict__["fields"]["threads"]


def test_agent_when_a_lock_is_never_let_go_then_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"tenant: acme\nagent: db-1\ngateway: {{address: '127.0.0.1:1'}}\nstate_folder: {tmp_path}\nremote: {{}}\n"
    )
    agent = pipeline.Agent(load(config))
    state = SourceState(SourceConfig(name="shop", kind="mysql", filter=Filter()))
    agent._states.add(state)
    stopping = threading.Event()
    stopping.set()
    monkeypatch.setattr(pipeline, "END_SECONDS", 0.1)
    with state._lock:
        assert agent.run(stopping) == Defect.exit_code


def test_start_when_sources_are_checked_then_may_take_longer(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as listener:
        ServiceManager(str(tmp_path / "notify")).starts()
        assert listener.next() == ["EXTEND_TIMEOUT_USEC=300000000"]


def test_agent_when_nobody_reads_the_socket_then_works_and_tells_later(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    address = str(tmp_path / "notify")
    with following(address, Supervised()) as turns:
        turns.pass_by()
        assert said() == ["the service manager is not told"]
        with listening(address) as listener:
            assert listener.next()[0] == "READY=1"


def test_agent_when_the_manager_is_slow_to_read_then_waits_without_using_the_cpu(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    address = str(tmp_path / "notify")
    with listening(address) as listener:
        manager, used = ServiceManager(address), 0.0
        while not said():
            began = time.thread_time()
            manager.tell("WATCHDOG=1")
            used = time.thread_time() - began
        assert used < service_manager.SEND_SECONDS / 10
        assert listener.next() == ["WATCHDOG=1"]
        assert manager.tell("STATUS=at work")


def test_watchdog_when_another_process_is_meant_then_is_none() -> None:
    environment = {"NOTIFY_SOCKET": "/run/s", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}
    assert ServiceManager.of(environment, 8) == ServiceManager("/run/s", 0.0)
    assert ServiceManager.of({"WATCHDOG_USEC": "soon"}, 8) == ServiceManager()


def test_movement_when_heartbeats_do_not_come_round_then_there_is_none() -> None:
    states = SourceStates()
    heartbeat = HeartbeatPlugin(states)
    movement = Movement(states, heartbeat)
    try:
        assert movement.moves()
        assert movement.status() == f"version {VERSION}; gateway not connected; 0 sources"
    finally:
        heartbeat.stop()
    heartbeat.moved_at_seconds = time.monotonic() - MOST_SILENT_SECONDS
    assert not movement.moves()


def test_agent_when_run_as_a_service_then_tells_when_it_is_ready_how_it_is_and_that_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayDouble()
    config = tmp_path / "agent.yaml"
    named = {"tenant": "acme", "agent": "db-1", "state_folder": str(tmp_path / "state"), "remote": {}}
    config.write_text(yaml.safe_dump(named | {"gateway": {"address": gateway.address}}))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    try:
        with listening(str(tmp_path / "notify")) as listener, running_agent(config, tmp_path / "agent.log") as process:
            assert listener.next()[0] == "READY=1"
            listener.until(f"STATUS=version {VERSION}; gateway connected; 0 sources")
            listener.until("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            listener.until("STOPPING=1")
    finally:
        gateway.stop()


def test_service_when_no_server_can_be_reached_at_its_start_then_stays_says_so_and_goes_on_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayDouble()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("INVOCATION_ID", "this one")
    away = {"client": {"host": "127.0.0.1", "port": free_port(), "user": "menura", "password": "menura-secret"}}
    try:
        config = write_config(tmp_path, gateway.address, {"away": away})
        with listening(str(tmp_path / "notify")) as listener, running_agent(config, tmp_path / "log") as process:
            listener.until(f"STATUS=version {VERSION}; gateway connected; 1 sources, with errors away: SOURCE_UNREACH")
            said = json.loads((tmp_path / "state/upgrade-sources.json").read_text())
            assert said == {"format": 1, "invocation": "this one", "sources": {"away": "SOURCE_UNREACHABLE"}}
            assert process.poll() is None
    finally:
        gateway.stop()


def test_heartbeats_when_the_gateway_says_another_interval_then_it_counts_within_the_agents_bounds() -> None:
    heartbeat = HeartbeatPlugin(SourceStates())
    try:
        for told_ms, seconds in ((0, DEFAULT_HEARTBEAT_SECONDS), (5_000, 5.0), (0, 5.0), (2**32 - 1, 60.0), (1, 0.1)):
            ack = HeartbeatAck(received_at_us=1, heartbeat_interval_ms=told_ms)
            heartbeat.received(StreamRequest(heartbeat_ack=ack))
            assert heartbeat._interval_seconds == seconds
    finally:
        heartbeat.stop()
