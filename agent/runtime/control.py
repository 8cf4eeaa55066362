"""Control_Config and Control_Heartbeat: the agent's own two streams.

Comes in: configurations of sources, desired states, certificates, versions. Goes out: who we are, which sources run
with which configuration, the effective state of every source after each change, and heartbeats with what the process
uses and where each source is.
"""

import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from menura.allocator import give_code_back
from menura.distributions import version
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import config_pb2, stream_pb2

from agent.errors import GatewayError
from agent.runtime.memory import Rest
from agent.runtime.renewal import Renewal
from agent.runtime.requests import interval_seconds
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import SourceStates
from agent.runtime.upgrade import Upgrade

log = logging.getLogger("menura.control")

DEFAULT_HEARTBEAT_SECONDS = 5.0
#: whatever the gateway asks for
LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS = 0.1, 60.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ConfiguredSources(Protocol):
    """What makes the agent's sources those that the control plane configures."""

    def desire(self, desired: config_pb2.DesiredSources) -> None:
        """Take it over; MUST NOT block."""

    def effective(self) -> config_pb2.EffectiveSources | None:
        """None: nothing was desired yet."""

    def tell(self, on_change: Callable[[], None]) -> None:
        """Call it after each change of what `effective` says."""


class ConfigPlugin:
    """Takes desired states over and reports effective ones."""

    source = ""
    request_type = stream_pb2.Control_Config

    def __init__(self, states: SourceStates, configured: ConfiguredSources, renewal: Renewal, upgrade: Upgrade) -> None:
        self._states = states
        self._configured = configured
        self._renewal = renewal
        self._upgrade = upgrade
        self._changed = threading.Condition()
        self._dirty: set[str] = set()
        #: what is configured has changed
        self._is_anew = False
        self._writer: StreamWriter | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)
        states.tell(self._mark)
        configured.tell(self._mark_configured)
        self._thread.start()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(
            protocol=PROTOCOL_VERSION,
            version=version("menura"),
            hostname=platform.node(),
            sources=[state.hello() for state in self._states.all()],
        )

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        for state in self._states.all():
            state.new_session()
        self._renewal.opened(writer)
        self._upgrade.opened(writer)
        with self._changed:
            self._writer = writer

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") == "certificate":
            self._renewal.received(request.certificate)
        if request.WhichOneof("payload") == "desired_sources":
            self._configured.desire(request.desired_sources)
        if request.WhichOneof("payload") == "desired_version":
            self._upgrade.desire(request.desired_version)
        if request.WhichOneof("payload") == "package_piece":
            self._upgrade.took(request.package_piece)
        if request.WhichOneof("payload") != "desired_state":
            return
        desired = request.desired_state
        state = self._states[desired.source]
        if state is None:
            log.warning("desired state of an unknown source", extra={"fields": {"source": desired.source}})
            return
        notice = state.desire(desired)
        if notice:
            log.warning("desired state", extra={"fields": {"source": desired.source, "found": notice}})

    def refused(self, error: GatewayError) -> None:
        """It is in the log; a source that is refused has streams of its own. It may answer a request for a package."""
        self._upgrade.refused(error)

    def closed(self) -> None:
        self._renewal.closed()
        self._upgrade.closed()
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

    def _mark_configured(self) -> None:
        with self._changed:
            self._is_anew = True
            self._changed.notify_all()

    def _run(self) -> None:
        """Send what changed; a source that changes often is sent once for several changes."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._dirty or self._is_anew)
                if self._stopping:
                    return
                dirty, self._dirty = self._dirty, set()
                is_anew, self._is_anew = self._is_anew, False
                writer = self._writer
            if writer is None:
                continue
            sources = self._configured.effective() if is_anew else None
            if sources is not None:
                self._send(writer, stream_pb2.StreamResponse(effective_sources=sources))
            for source in sorted(dirty):
                state = self._states[source]
                effective = None if state is None else state.effective()
                if effective is not None:
                    self._send(writer, stream_pb2.StreamResponse(effective_state=effective))

    def _send(self, writer: StreamWriter, response: stream_pb2.StreamResponse) -> None:
        try:
            writer.send(response)
        except StreamClosed:
            return  # the next stream begins with a desired state, and that is answered whole


class HeartbeatPlugin:
    """Sends a heartbeat in the interval that the gateway asks for."""

    source = ""
    request_type = stream_pb2.Control_Heartbeat

    def __init__(self, states: SourceStates) -> None:
        self._states = states
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        self._stopping = False
        #: by the monotonic clock: its thread was here
        self.moved_at_seconds = time.monotonic()
        #: the gateway has one of our heartbeats
        self.acknowledged = threading.Event()
        self._rest = Rest(self.moved_at_seconds, time.process_time())
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION, version=version("menura"))

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        with self._changed:
            self._writer = writer
            self._follow_interval(ack.heartbeat_interval_ms)
            self._changed.notify_all()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        if request.WhichOneof("payload") == "heartbeat_ack":
            self._follow_interval(request.heartbeat_ack.heartbeat_interval_ms)
            self.acknowledged.set()

    def _follow_interval(self, milliseconds: int) -> None:
        """From the next heartbeat on; 0: as before."""
        if milliseconds:
            self._interval_seconds = interval_seconds(milliseconds, LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS)

    def refused(self, error: GatewayError) -> None:
        """It is in the log, and nothing else could be told of it: the gateway sees the agent go."""

    def closed(self) -> None:
        with self._changed:
            self._writer = None

    @property
    def is_connected(self) -> bool:
        """Its stream to the gateway is open."""
        return self._writer is not None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.moved_at_seconds = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._writer is not None, MOST_HEARTBEAT_SECONDS)
                if self._stopping:
                    return
                writer = self._writer
            if writer is None:
                continue
            try:
                writer.send(stream_pb2.StreamResponse(heartbeat=self._heartbeat()))
            except StreamClosed:
                log.debug("heartbeat not sent")
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._writer is not writer, self._interval_seconds)  # noqa: B023

    def _heartbeat(self) -> config_pb2.Heartbeat:
        if self._rest.is_due(time.monotonic(), time.process_time()):
            give_code_back()
        return config_pb2.Heartbeat(
            resident_memory_bytes=resident_memory_bytes(),
            cpu_us=time.process_time_ns() // 1000,
            sources=[state.status() for state in self._states.all()],
        )


def resident_memory_bytes() -> int:
    """Of this process now, from /proc/self/statm (proc(5): the second field, in pages)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
