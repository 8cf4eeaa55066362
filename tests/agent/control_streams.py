"""The control streams of an agent, as a process whose memory a test looks at: `python -m tests.agent.control_streams`.

One source, `shop`, of which no server is asked. The argument is the gateway's address.
"""

import sys
import threading
from pathlib import Path

from agent.filter import Filter
from agent.remote_sources import RemoteSources
from agent.running_source import RunningSource
from agent.runtime import logs
from agent.runtime.control import ConfigPlugin, HeartbeatPlugin
from agent.runtime.renewal import Renewal
from agent.runtime.session import GatewayChannel, Stream
from agent.runtime.state import SourceState, SourceStates
from agent.runtime.upgrade import Upgrade
from agent.runtime.upgrade_files import UpgradePlaces
from agent.settings import AgentConfig, GatewayConfig, SourceConfig


def main() -> None:
    logs.start("info")
    channel = GatewayChannel(AgentConfig("acme", "db-1", GatewayConfig(sys.argv[1], None), ()))
    states = SourceStates()
    states.add(SourceState(SourceConfig(name="shop", kind="mysql", filter=Filter())))

    def make(source: SourceConfig) -> RunningSource:
        raise AssertionError(f"{source.name}: nothing may be configured here")

    configured = RemoteSources(None, frozenset({"shop"}), Path(), states, make)
    upgrade = Upgrade(UpgradePlaces(Path()), "0.1.0")
    for plugin in (ConfigPlugin(states, configured, Renewal(None, channel), upgrade), HeartbeatPlugin(states)):
        Stream(channel, plugin).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
