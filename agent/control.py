"""Control_Config and Control_Heartbeat: the agent's own two streams.

Comes in: desired states. Goes out: who we are, the effective state of every source after each change, and
heartbeats with what the process uses and where each source is.
"""

import logging
import os
import platform
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from menura.v1 import config_pb2, stream_pb2

from agent.session import PROTOCOL_VERSION, Outlet, StreamClosed
from agent.state import SourceState

log = logging.getLogger("menura.control")

DEFAULT_HEARTBEAT_SECONDS = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ConfigPlugin:
    """Takes desired states over and reports effective ones."""

    source = ""
    request_type = stream_pb2.Control_Config

    def __init__(self, states: Mapping[str, SourceState]) -> None:
        self._states = states
        self._changed = threading.Condition()
        self._dirty: set[str] = set()
        self._outlet: Outlet | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)
        for state in states.values():
            state.on_change = self._mark
        self._thread.start()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(
            protocol=PROTOCOL_VERSION,
            version=version("menura"),
            hostname=platform.node(),
            sources=[state.hello() for state in self._states.values()],
        )

    def opened(self, outlet: Outlet, ack: config_pb2.HelloAck) -> None:
        for state in self._states.values():
            state.new_session()
        with self._changed:
            self._outlet = outlet

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") != "desired_state":
            return
        desired = request.desired_state
        if desired.source not in self._states:
            log.warning("desired state of an unknown source", extra={"fields": {"source": desired.source}})
            return
        self._states[desired.source].desire(desired)

    def closed(self) -> None:
        with self._changed:
            self._outlet = None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _mark(self, source: str) -> None:
        with self._changed:
            self._dirty.add(source)
            self._changed.notify_all()

    def _run(self) -> None:
        """Send what changed; a source that changes often is sent once for several changes."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._dirty)
                if self._stopping:
                    return
                dirty, self._dirty = self._dirty, set()
                outlet = self._outlet
            for source in sorted(dirty):
                effective = self._states[source].effective()
                if effective is not None and outlet is not None:
                    self._send(outlet, effective)

    def _send(self, outlet: Outlet, effective: config_pb2.EffectiveState) -> None:
        try:
            outlet.send(stream_pb2.StreamResponse(effective_state=effective))
        except StreamClosed:
            return  # the next stream begins with a desired state, and that is answered whole


class HeartbeatPlugin:
    """Sends a heartbeat in the interval that the gateway asks for."""

    source = ""
    request_type = stream_pb2.Control_Heartbeat

    def __init__(self, states: Mapping[str, SourceState]) -> None:
        self._states = states
        self._changed = threading.Condition()
        self._outlet: Outlet | None = None
        self._interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        self._stopping = False
        #: the gateway has one of our heartbeats
        self.acknowledged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION, version=version("menura"))

    def opened(self, outlet: Outlet, ack: config_pb2.HelloAck) -> None:
        with self._changed:
            self._outlet = outlet
            if ack.heartbeat_interval_ms:
                self._interval_seconds = ack.heartbeat_interval_ms / 1000
            self._changed.notify_all()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") == "heartbeat_ack":
            self.acknowledged.set()

    def closed(self) -> None:
        with self._changed:
            self._outlet = None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._outlet is not None)
                if self._stopping:
                    return
                outlet = self._outlet
            assert outlet is not None
            try:
                outlet.send(stream_pb2.StreamResponse(heartbeat=self._heartbeat()))
            except StreamClosed:
                log.debug("heartbeat not sent")
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._outlet is not outlet, self._interval_seconds)  # noqa: B023

    def _heartbeat(self) -> config_pb2.Heartbeat:
        return config_pb2.Heartbeat(
            resident_memory_bytes=resident_memory_bytes(),
            cpu_us=time.process_time_ns() // 1000,
            sources=[state.status() for state in self._states.values()],
        )


def resident_memory_bytes() -> int:
    """Of this process now, from /proc/self/statm (proc(5): the second field, in pages)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
