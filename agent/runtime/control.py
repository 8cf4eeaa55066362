"""Control_Config and Control_Heartbeat: the agent's own two streams.

Comes in: desired states, certificates. Goes out: who we are, the effective state of every source after each change, and
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

from menura.protocol import PROTOCOL_VERSION
from menura.v1 import config_pb2, stream_pb2

from agent.runtime.renewal import Renewal
from agent.runtime.requests import interval_seconds
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import SourceState

log = logging.getLogger("menura.control")

DEFAULT_HEARTBEAT_SECONDS = 5.0
#: whatever the gateway asks for
LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS = 0.1, 60.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ConfigPlugin:
    """Takes desired states over and reports effective ones."""

    source = ""
    request_type = stream_pb2.Control_Config

    def __init__(self, states: Mapping[str, SourceState], renewal: Renewal) -> None:
        self._states = states
        self._renewal = renewal
        self._changed = threading.Condition()
        self._dirty: set[str] = set()
        self._writer: StreamWriter | None = None
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

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        for state in self._states.values():
            state.new_session()
        self._renewal.opened(writer)
        with self._changed:
            self._writer = writer

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") == "certificate":
            self._renewal.received(request.certificate)
        if request.WhichOneof("payload") != "desired_state":
            return
        desired = request.desired_state
        if desired.source not in self._states:
            log.warning("desired state of an unknown source", extra={"fields": {"source": desired.source}})
            return
        notice = self._states[desired.source].desire(desired)
        if notice:
            log.warning("desired state", extra={"fields": {"source": desired.source, "found": notice}})

    def closed(self) -> None:
        self._renewal.closed()
        with self._changed:
            self._writer = None

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
                writer = self._writer
            for source in sorted(dirty):
                effective = self._states[source].effective()
                if effective is not None and writer is not None:
                    self._send(writer, effective)

    def _send(self, writer: StreamWriter, effective: config_pb2.EffectiveState) -> None:
        try:
            writer.send(stream_pb2.StreamResponse(effective_state=effective))
        except StreamClosed:
            return  # the next stream begins with a desired state, and that is answered whole


class HeartbeatPlugin:
    """Sends a heartbeat in the interval that the gateway asks for."""

    source = ""
    request_type = stream_pb2.Control_Heartbeat

    def __init__(self, states: Mapping[str, SourceState]) -> None:
        self._states = states
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        self._stopping = False
        #: the gateway has one of our heartbeats
        self.acknowledged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION, version=version("menura"))

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        with self._changed:
            self._writer = writer
            if ack.heartbeat_interval_ms:
                interval_ms = ack.heartbeat_interval_ms
                self._interval_seconds = interval_seconds(interval_ms, LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS)
            self._changed.notify_all()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") == "heartbeat_ack":
            self.acknowledged.set()

    def closed(self) -> None:
        with self._changed:
            self._writer = None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._writer is not None)
                if self._stopping:
                    return
                writer = self._writer
            assert writer is not None
            try:
                writer.send(stream_pb2.StreamResponse(heartbeat=self._heartbeat()))
            except StreamClosed:
                log.debug("heartbeat not sent")
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._writer is not writer, self._interval_seconds)  # noqa: B023

    def _heartbeat(self) -> config_pb2.Heartbeat:
        return config_pb2.Heartbeat(
            resident_memory_bytes=resident_memory_bytes(),
            cpu_us=time.process_time_ns() // 1000,
            sources=[state.status() for state in self._states.values()],
        )


def resident_memory_bytes() -> int:
    """Of this process now, from /proc/self/statm (proc(5): the second field, in pages)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
