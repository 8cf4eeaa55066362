"""Runs those words of `menura` that are the control plane's and the gateway's (see `menura.cli`): finds which.

An error is one line on standard error; each kind has an exit code of its own (see the `errors` modules).
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from menura import log_format
from menura.errors import MenuraError

if TYPE_CHECKING:
    import typer

#: word, and the module and app that serve it; imported only when asked for
COMMANDS = {
    "gateway": ("controlplane_api.commands.gateway", "app"),
    "api": ("controlplane_api.commands.api", "app"),
    "up": ("controlplane_api.commands.up", "app"),
    "agents": ("controlplane_api.commands.agents", "app"),
    "audit": ("controlplane_api.commands.agents", "audit_app"),
    "api-token": ("controlplane_api.commands.api_token", "app"),
    "login": ("controlplane_api.commands.login", "app"),
    "token": ("controlplane_api.commands.token", "app"),
    "sources": ("controlplane_api.commands.sources", "app"),
    "plan": ("controlplane_api.commands.fleet", "plan_app"),
    "apply": ("controlplane_api.commands.fleet", "apply_app"),
    "tenants": ("controlplane_api.commands.tenants", "app"),
    "tables": ("controlplane_api.commands.show", "tables_app"),
    "table": ("controlplane_api.commands.table", "app"),
    "ledger": ("controlplane_api.commands.ledger", "app"),
    "offset": ("controlplane_api.commands.offset", "app"),
    "events": ("controlplane_api.commands.show", "events_app"),
    "filter": ("controlplane_api.commands.filter", "app"),
    "lakes": ("controlplane_api.commands.show", "lakes_app"),
    "top": ("controlplane_api.commands.top", "app"),
    "why": ("controlplane_api.commands.why", "app"),
    "status": ("controlplane_api.commands.show", "status_app"),
    "sync": ("controlplane_api.commands.sync", "app"),
    "dump": ("controlplane_api.commands.dump", "app"),
    "view": ("controlplane_api.commands.view", "app"),
    "upgrade": ("controlplane_api.commands.upgrade", "app"),
    "verify": ("controlplane_api.commands.verify", "app"),
}


class _Parameter(Protocol):
    @property
    def opts(self) -> list[str]: ...


class _Command(Protocol):
    """As Typer makes one of an app."""

    @property
    def params(self) -> Sequence[_Parameter]: ...


def completions() -> dict[tuple[str, ...], list[str]]:
    """Of its words: see `menura.completion`."""
    from typer.main import get_command  # noqa: PLC0415

    from controlplane_api.commands.options import add_shared_options  # noqa: PLC0415

    found: dict[tuple[str, ...], list[str]] = {}
    for word, (module, name) in COMMANDS.items():
        app = getattr(importlib.import_module(module), name)
        add_shared_options(app)
        found |= _of_command((word,), get_command(app))
    return found


def _of_command(place: tuple[str, ...], command: "_Command") -> dict[tuple[str, ...], list[str]]:
    options = ["--help", *(option for each in command.params for option in each.opts if option.startswith("--"))]
    below: dict[str, _Command] = getattr(command, "commands", {})
    found = {place: sorted([*options, *below])}
    for name, each in below.items():
        found |= _of_command((*place, name), each)
    return found


def main() -> int:
    """Run `sys.argv`, whose first element is "menura WORD"; returns or exits with the command's exit code."""
    # Typer is not there for those who only look which words there are.
    from controlplane_api.commands.options import add_shared_options  # noqa: PLC0415

    program = sys.argv[0]
    module, name = COMMANDS[program.rpartition(" ")[2]]
    app: typer.Typer = getattr(importlib.import_module(module), name)
    log_format.to_stderr(has_logger=True)
    log_format.use()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        add_shared_options(app)
        app(prog_name=program)
    except MenuraError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    return 0
