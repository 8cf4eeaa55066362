"""Runs those words of `menura` that are the control plane's and the gateway's (see `menura.cli`): finds which.

An error is one line on standard error; each kind has an exit code of its own (see the `errors` modules).
"""

import importlib
import logging
import sys
import time
from typing import TYPE_CHECKING

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
    "tables": ("controlplane_api.commands.show", "tables_app"),
    "table": ("controlplane_api.commands.table", "app"),
    "ledger": ("controlplane_api.commands.ledger", "app"),
    "offset": ("controlplane_api.commands.offset", "app"),
    "events": ("controlplane_api.commands.show", "events_app"),
    "lakes": ("controlplane_api.commands.show", "lakes_app"),
    "status": ("controlplane_api.commands.show", "status_app"),
    "sync": ("controlplane_api.commands.sync", "app"),
    "dump": ("controlplane_api.commands.dump", "app"),
    "verify": ("controlplane_api.commands.verify", "app"),
}


def main() -> int:
    """Run `sys.argv`, whose first element is "menura WORD"; returns or exits with the command's exit code."""
    # Typer is not there for those who only look which words there are.
    from controlplane_api.commands.options import add_access_options  # noqa: PLC0415

    program = sys.argv[0]
    module, name = COMMANDS[program.rpartition(" ")[2]]
    app: typer.Typer = getattr(importlib.import_module(module), name)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    logging.Formatter.converter = time.gmtime
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        add_access_options(app)
        app(prog_name=program)
    except MenuraError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    return 0
