"""`menura agent enrol`, `menura agent run` and `menura agent check`."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from menura.identity import ENROLMENT_PORT_OFFSET, EnrolmentToken
from menura.signals import set_at_signal

from agent.config import load, named, to_enrol
from agent.enrolment import enrol
from agent.errors import ConfigError, EnrolmentFailed, GatewayError, TableError
from agent.identity import FILE_NAME, IdentityFile
from agent.pipeline import Agent
from agent.runtime import logs, memory
from agent.settings import AgentConfig

TOKEN_VARIABLE = "MENURA_ENROLMENT_TOKEN"  # noqa: S105  (a name)
ENROL_HELP = "get this host's agent a certificate with an enrolment token"


def main() -> int:
    """Entry point; returns the exit code (see agent.errors)."""
    arguments = _parser().parse_args()
    logs.start(arguments.log_level)
    try:
        if arguments.command == "enrol":
            return _enrol(arguments)
        config = load(arguments.config)
    except (ConfigError, GatewayError) as error:
        print(f"menura agent: {error}", file=sys.stderr)
        return error.exit_code
    return _check(config) if arguments.command == "check" else _run(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura agent", description="Change data capture beside the database.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{enrol,run,check}")
    for name, what in (
        ("run", "stream changes to the gateway"),
        ("check", "check every source and print one line each"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's YAML file")
        levels = ("debug", "info", "warning", "error")
        command.add_argument("--log-level", choices=levels, default="info" if name == "run" else "error")
    _add_enrol(commands.add_parser("enrol", help=ENROL_HELP, description=ENROL_HELP))
    return parser


def _add_enrol(command: argparse.ArgumentParser) -> None:
    command.set_defaults(log_level="error")
    command.add_argument(
        "--gateway", metavar="HOST:PORT", help="as agents dial it; default: gateway.address of --config"
    )
    token = f"of menura token create; default: the environment's {TOKEN_VARIABLE}, which no list of processes shows"
    command.add_argument("--token", help=token)
    config = "the agent's YAML file: its name, its sources and where its identity is kept"
    command.add_argument("--config", type=Path, metavar="FILE", help=config)
    command.add_argument("--agent", metavar="NAME", help="without --config; default: the host's name")
    command.add_argument("--identity", type=Path, metavar="FILE", help=f"default: {FILE_NAME} in the state folder")
    port = "of the gateway's --enrol-listen; default: the port after the gateway's"
    command.add_argument("--enrol-port", type=int, metavar="PORT", help=port)


def _enrol(arguments: argparse.Namespace) -> int:
    names = named(arguments.agent or "") if arguments.config is None else to_enrol(arguments.config)
    address = arguments.gateway or names.address
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65535:
        raise EnrolmentFailed("reading the command", f"{address!r} is not HOST:PORT", remedy="Give --gateway HOST:PORT")
    try:
        token = EnrolmentToken.parse(arguments.token or os.environ.get(TOKEN_VARIABLE, ""))
    except ValueError as wrong:
        raise EnrolmentFailed(
            "reading the command", str(wrong), remedy="Give --token, as menura token create has printed it"
        ) from wrong
    file = names.file if arguments.identity is None else IdentityFile(arguments.identity)
    enrol_port = arguments.enrol_port or int(port) + ENROLMENT_PORT_OFFSET
    enrolled = enrol(host.strip("[]"), enrol_port, token, names.agent, names.sources, file)
    print(f"enrolled: agent {enrolled.agent} of tenant {enrolled.tenant}, key and certificate in {file.path}")
    if names.tenant not in ("", enrolled.tenant):
        print(f"warning: the configuration names tenant {names.tenant}, and the token was one of {enrolled.tenant}")
    for source in enrolled.unassigned:
        print(f"warning: source {source} is not this agent's: menura sources assign {source} --agent {enrolled.agent}")
    return 0


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
