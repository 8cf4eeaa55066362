"""`menura filter show | set SOURCE TABLE`: what of a table leaves its host, for sources that are configured here."""

from typing import Annotated, Any

import typer
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import ConfigurationView, TableDetail, TableFilterView
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    count,
    forced_group,
    plain,
    put,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import DryRun, TableArgument, parse_table
from controlplane_api.errors import RequestInvalid
from controlplane_api.table_filter import Leaving, changed, judged, with_columns

app = forced_group("What of a table leaves its host, by the configuration of its source.")

#: what nobody here knows, and whoever asks should
BEYOND = "The host's own policy may keep back more, and never less: there, menura agent policy test says all."

IgnoreOption = Annotated[list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="It stays; repeatable.")]
ReleaseOption = Annotated[
    list[str] | None, typer.Option("--release", metavar="COLUMN", help="One that stayed leaves again; repeatable.")
]
LeavesOption = Annotated[bool | None, typer.Option("--leaves/--stays", help="Whether any row of the table leaves.")]


@app.command()
def show(
    source: str,
    table: TableArgument,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Which columns leave."""
    name = parse_table(table)
    with connect(api, tenant) as client:
        found, detail = client.configuration(source), client.table(source, *name)
    _put(source, detail, judged(found.desired, name), as_json=as_json)


@app.command("set")
def alter(
    source: str,
    table: TableArgument,
    ignore: IgnoreOption = None,
    release: ReleaseOption = None,
    leaves: LeavesOption = None,
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Change it for this table alone. Values that have left before stay where they are."""
    if not (ignore or release or leaves is not None):
        raise RequestInvalid("reading the command", "it says nothing", remedy="Give --ignore, --release or --stays.")
    if leaves is False and (ignore or release):
        raise RequestInvalid(
            "reading the command", "no column leaves of a table that stays", data="Nothing was changed."
        )
    name = parse_table(table)
    with connect(api, tenant) as client:
        before, detail = client.configuration(source), client.table(source, *name)
        wanted = _wanted(judged(before.desired, name), detail, ignore or [], release or [], leaves)
        configuration = changed(before.desired, name, wanted)
        if not dry_run:
            _save(client, source, before, configuration)
    _put(source, detail, wanted, as_json=as_json)
    if not as_json:
        words = "Nothing was changed." if dry_run else f"What becomes of it: menura sources show {source}"
        put(Text(words))


def _wanted(
    before: Leaving, detail: TableDetail, ignore: list[str], release: list[str], leaves: bool | None
) -> Leaving:
    if leaves is False:
        return Leaving(False)
    if not before.leaves and leaves is None:
        found = "no row of the table leaves, so no column does"
        raise RequestInvalid("changing a filter", found, data="Nothing was changed.", remedy="Add --leaves.")
    key = next((key.columns for key in detail.keys if key.name == "PRIMARY" or key.unique), [])
    return with_columns(before, ignore, release, [column.name for column in detail.columns], key)


def _save(client: ApiClient, source: str, before: ConfigurationView, configuration: dict[str, Any]) -> None:
    now = client.configuration(source)
    if now.sha256 != before.sha256:
        found = "somebody has changed the source's configuration meanwhile"
        raise RequestInvalid("changing a filter", found, data="Nothing was changed.", remedy="Run it again.")
    client.configure(source, now.agent or "", configuration, "some")


def _put(source: str, detail: TableDetail, leaving: Leaving, *, as_json: bool) -> None:
    stays = {name.lower() for name in leaving.ignored}
    columns = {column.name: leaving.leaves and column.name.lower() not in stays for column in detail.columns}
    if as_json:
        shown = TableFilterView(
            source=source,
            database=detail.database,
            table=detail.table,
            leaves=leaving.leaves,
            ignored_columns=list(leaving.ignored),
            columns=columns,
        )
        typer.echo(document(shown))
        return
    table = Grid("COLUMN", "TYPE", "LEAVES", folds=["TYPE"])
    for column in detail.columns:
        word = Text("yes", style="green") if columns[column.name] else Text("stays", style="yellow")
        table.add_row(Text(plain(column.name), style="bold"), Text(plain(column.column_type)), word)
    some = f"{count(sum(columns.values()))} of {count(len(columns))} columns of" if leaving.leaves else "No row of"
    name = plain(f"{detail.database}.{detail.table}")
    put(Text(f"{some} {name} {'leave' if leaving.leaves else 'leaves'} the host of source {plain(source)}."), table)
    put(Text(BEYOND, style="dim"))
