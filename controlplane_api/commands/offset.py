"""`menura offset show | set SOURCE TABLE`: where a table is in its source's log, and where it shall go on instead."""

from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.views import OffsetView
from controlplane_api.commands.access import connect
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Tenant,
    forced_group,
    moment,
    plain,
    put,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import DryRun, TableArgument, parse_table

app = forced_group("The position of a table in its source's log.")


@app.command()
def show(
    source: str,
    table: TableArgument,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Up to where the source is read and committed, and the table has landed."""
    with connect(api, tenant) as client:
        found, _ = client.offset(source, *parse_table(table))
    _put(found, as_json=as_json)


@app.command("set")
def alter(
    source: str,
    table: TableArgument,
    position: Annotated[str, typer.Option("--to", metavar="POSITION", help="As its server writes it.")],
    reason: Annotated[str, typer.Option("--reason", help="For the audit log and the lake's events.")],
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Have a stopped table go on from there once it is started; its present position takes that back."""
    name = parse_table(table)
    with connect(api, tenant) as client:
        _, tag = client.offset(source, *name)
        found = client.alter_offset(source, name, position, reason, tag=tag, dry_run=dry_run)
    _put(found, as_json=as_json)


def _put(found: OffsetView, *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(found))
        return
    facts = {"read": found.read, "committed": found.committed, "table": found.position}
    if found.altered is not None:
        one = found.altered
        facts["altered"] = f"{one.position}, by {one.actor} at {moment(one.at_us)}: {one.reason}"
    put(*(Text(f"{name:<10}{plain(words) or UNKNOWN}") for name, words in facts.items()))
    if found.notice:
        put(Text(found.notice))
