"""Whether the agent moves, and what it is doing, for the service manager.

It moves while its heartbeats' thread comes round and the lock of each source's state can be had: the threads that read,
dump and send all take these locks. A gateway that is away, a server that does not answer and a source with nothing to
read are no reason to start anew, and are told in the status alone. So is a source that reads and gets no further: its
lag is known to the gateway, and another process would read the same.

The status begins with `version 1.2.3; gateway connected` once a gateway has acknowledged a heartbeat: the updater
of the host takes a new version for well by these words, and by which sources are in error, which is told before them.
"""

import time

from menura.distributions import version

from agent.runtime.control import HeartbeatPlugin
from agent.runtime.state import SourceStates
from agent.runtime.upgrade_files import ToldSources

#: twice the longest interval of heartbeats, and what a stream that nobody answers takes to end
MOST_SILENT_SECONDS = 180.0


class Movement:
    def __init__(self, states: SourceStates, heartbeat: HeartbeatPlugin, told: ToldSources | None = None) -> None:
        """`told`: who is told of the sources at each look; None: nobody."""
        self._states = states
        self._heartbeat = heartbeat
        self._told = told
        self._version = version("menura")

    def status(self) -> str:
        codes = self._states.codes()
        if self._told is not None:
            self._told.tell(codes)
        is_known = self._heartbeat.is_connected and self._heartbeat.acknowledged.is_set()
        gateway = "connected" if is_known else "not connected"
        names = ", ".join(f"{name}: {code}" for name, code in codes.items() if code)
        errors = f", with errors {names}" if names else ""
        return f"version {self._version}; gateway {gateway}; {len(codes)} sources{errors}"

    def moves(self) -> bool:
        for state in self._states.all():
            state.status()
        return time.monotonic() - self._heartbeat.moved_at_seconds < MOST_SILENT_SECONDS
