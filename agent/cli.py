"""`menura agent enrol`, `menura agent run`, `menura agent check`, `menura agent grants`, `menura agent policy test`."""

import argparse
import os
import signal
import sys
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from menura import log_format, output
from menura.completion import of_parser
from menura.identity import ENROLMENT_PORT_OFFSET, EnrolmentToken
from menura.signals import set_at_signals

from agent import check_command, grants_command, policy_command
from agent.config import load, named, to_enrol
from agent.errors import ConfigError, EnrolmentFailed, GatewayError
from agent.identity import FILE_NAME, IdentityFile
from agent.pipeline import Agent
from agent.runtime import logs, memory
from agent.runtime.ending import leave
from agent.runtime.service_manager import service_manager
from agent.veto.policy_file import DEFAULT_FILE

TOKEN_VARIABLE = "MENURA_ENROLMENT_TOKEN"  # noqa: S105  (a name)
POLICY_HELP = f"what may leave this host; default: policy in the agent's file, else {DEFAULT_FILE} where it is there"
#: imported where they are used, and not missing then
LATER = ("cryptography", "nanoarrow")
ENROL_HELP = "get this host's agent a certificate with an enrolment token"


for _name in LATER:
    if find_spec(_name) is None:
        raise ModuleNotFoundError(f"No module named {_name!r}", name=_name)


def main() -> int:
    """Entry point; returns the exit code (see agent.errors)."""
    arguments = _parser().parse_args()
    logs.start(arguments.log_level, getattr(arguments, "log_format", None))
    try:
        if arguments.command == "enrol":
            return _enrol(arguments)
        if arguments.command == "policy":
            return policy_command.run(arguments.config, arguments.policy, arguments.table, arguments.output)
        if arguments.command == "grants":
            return grants_command.run(arguments)
        config = load(arguments.config)
        if getattr(arguments, "policy", None) is not None:
            config = replace(config, policy=arguments.policy)
        made = Agent(config)
    except (ConfigError, GatewayError) as error:
        print(f"menura agent: {error}", file=sys.stderr)
        return error.exit_code
    return check_command.run(made, arguments.output) if arguments.command == "check" else _run(made)


def completions() -> dict[tuple[str, ...], list[str]]:
    """Of its word: see `menura.completion`."""
    return of_parser(("agent",), _parser())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura agent", description="Change data capture beside the database.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{enrol,run,check,grants,policy}")
    for name, what in (
        ("run", "stream changes to the gateway"),
        ("check", check_command.HELP),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's YAML file")
        command.add_argument("--policy", type=Path, metavar="FILE", help=POLICY_HELP)
        levels = ("debug", "info", "warning", "error")
        command.add_argument("--log-level", choices=levels, default="info" if name == "run" else "error")
        command.add_argument("--log-format", choices=log_format.FORMATS, help=log_format.HELP)
        if name == "check":
            output.add_option(command)
    _add_policy(commands.add_parser("policy", help=policy_command.HELP, description=policy_command.HELP))
    _add_enrol(commands.add_parser("enrol", help=ENROL_HELP, description=ENROL_HELP))
    grants_command.add_options(commands.add_parser("grants", help=grants_command.HELP, description=grants_command.HELP))
    return parser


def _add_policy(command: argparse.ArgumentParser) -> None:
    tests = command.add_subparsers(dest="policy_command", required=True, metavar="{test}")
    test = tests.add_parser("test", help=policy_command.HELP, description=policy_command.HELP)
    test.set_defaults(log_level="error")
    test.add_argument("--config", type=Path, metavar="FILE", help="the agent's YAML file; its servers are asked")
    test.add_argument("--policy", type=Path, metavar="FILE", help=POLICY_HELP)
    names = "no server is asked, and the exit code is 39 where one of them stays"
    output.add_option(test)
    test.add_argument("--table", action="append", default=[], metavar="DATABASE.TABLE", help=names)


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
    from agent.enrolment import enrol  # noqa: PLC0415  (with what an agent that runs does not keep)

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


def _run(agent: Agent) -> NoReturn:
    stopping, is_policy_due = threading.Event(), threading.Event()
    set_at_signals({signal.SIGTERM: stopping, signal.SIGINT: stopping, signal.SIGHUP: is_policy_due})
    memory.settle()
    leave(agent.run(stopping, is_policy_due, service_manager()))


if __name__ == "__main__":
    sys.exit(main())
