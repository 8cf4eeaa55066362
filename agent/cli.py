"""`menura agent run` and `menura agent check`."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from menura.signals import set_at_signal

from agent.config import load
from agent.errors import ConfigError, GatewayError, TableError
from agent.pipeline import Agent
from agent.runtime import logs, memory
from agent.settings import AgentConfig


def main() -> int:
    """Entry point; returns the exit code (see agent.errors)."""
    arguments = _parser().parse_args()
    logs.start(arguments.log_level)
    try:
        config = load(arguments.config)
    except (ConfigError, GatewayError) as error:
        print(f"menura agent: {error}", file=sys.stderr)
        return error.exit_code
    return _check(config) if arguments.command == "check" else _run(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura agent", description="Change data capture beside the database.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,check}")
    for name, what in (
        ("run", "stream changes to the gateway"),
        ("check", "check every source and print one line each"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's YAML file")
        levels = ("debug", "info", "warning", "error")
        command.add_argument("--log-level", choices=levels, default="info" if name == "run" else "error")
    return parser


def _check(config: AgentConfig) -> int:
    """One line per source, and one per finding; the exit code is that of what stands still first: a source, a table."""
    checked = Agent(config).check()
    for result in checked:
        print(f"{result.source}: {result.error or 'ok, ' + '; '.join(result.found)}")
        for finding in result.findings:
            print(f"{result.source}: warning: {finding}")
    stopped = [result.error for result in checked if result.error is not None]
    stopped += [finding for result in checked for finding in result.findings if isinstance(finding, TableError)]
    return stopped[0].exit_code if stopped else 0


def _run(config: AgentConfig) -> int:
    stopping = threading.Event()
    set_at_signal(stopping, signal.SIGTERM, signal.SIGINT)
    memory.settle()
    return Agent(config).run(stopping)


if __name__ == "__main__":
    sys.exit(main())
