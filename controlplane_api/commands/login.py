"""`menura login`: a link that logs a browser in to the dashboard."""

import typer

from controlplane_api.commands.access import connect
from controlplane_api.commands.options import DEFAULT_API, DEFAULT_TENANT, Api, moment, single_command

app = single_command()


@app.command()
def login(api: Api = DEFAULT_API) -> None:
    """Print a link that logs one browser in, with the role of this command's token, within ten minutes."""
    with connect(api, DEFAULT_TENANT) as client:
        made = client.create_login_link()
    typer.echo(f"{api.rstrip('/')}{made.path}")
    typer.echo(f"Good once, until {moment(made.expires_at_us)}.", err=True)
