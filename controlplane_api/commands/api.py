"""`menura api run`: REST and dashboard over the control plane's database, in one process."""

import socket
from typing import Annotated

import typer

from controlplane_api.api.app import create_app, parse_listen
from controlplane_api.api.server import server_of
from controlplane_api.commands.options import DATABASE_HELP, forced_group
from controlplane_api.database import open_database
from controlplane_api.errors import ListenRefused

app = forced_group("The control plane's REST interface and dashboard.")


@app.command()
def run(
    database: Annotated[str, typer.Option(envvar="MENURA_DATABASE", help=DATABASE_HELP)],
    listen: Annotated[str, typer.Option(help="HOST:PORT on loopback; port 0 for any free one.")] = "127.0.0.1:7080",
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    host, port = parse_listen(listen)
    opened = open_database(database)
    try:
        with _listener(host, port) as listener:
            shown = f"[{host}]" if ":" in host else host
            typer.echo(f"API and dashboard on http://{shown}:{listener.getsockname()[1]}")
            server_of(create_app(opened)).run(sockets=[listener])
    finally:
        opened.close()


def _listener(host: str, port: int) -> socket.socket:
    """Bound before anything else is said, so that an address in use is an error of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as taken:
        raise ListenRefused(
            f"listening on {host}:{port}",
            taken.strerror or str(taken),
            remedy="Stop what listens there, or set --listen to another port.",
        ) from taken
