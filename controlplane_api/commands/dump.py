"""`menura dump start | list | show | pause | resume | cancel | priority | limit`: first copies of tables."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from menura.instants import now_us
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import DumpDetail, Dumps, DumpView
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Force,
    Tenant,
    count,
    duration,
    forced_group,
    moment,
    plain,
    put,
    size,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TablesArgument, named_tables, show_outcomes
from controlplane_api.errors import DumpUnknown
from controlplane_api.states import DumpState

app = forced_group("First copies of tables: begin them, see how far they are, hold them back.")

STATE_STYLES = {
    DumpState.READING: "cyan",
    DumpState.ENDING: "cyan",
    DumpState.DONE: "green",
    DumpState.WAITING: "yellow",
    DumpState.PENDING: "yellow",
    DumpState.PAUSED: "yellow",
    DumpState.FAILED: "bold red",
    DumpState.REFUSED: "bold red",
    DumpState.LOST: "bold red",
}
#: by `cause`
_ORDERED = {
    "reread": "by Menura: the server changed rows without logging them",
    "verification": "by a user, to compare the table with the lake: it brings no rows",
}
#: of a list, where not all are asked for
LISTED_DUMPS = 50
#: of a dump's UUID, as much as names it
SHORT_NAME = 8

DumpArgument = Annotated[str, typer.Argument(metavar="DUMP", help="Its UUID, or a beginning of it that is unique.")]
Priority = Annotated[int, typer.Option("--priority", help="Higher ones go first; equal ones share.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Connections that read at once; 0: the agent's limit.")]
RowsPerSecond = Annotated[int, typer.Option("--rows-per-second", min=0, help="0: the agent's limit.")]
BytesPerSecond = Annotated[int, typer.Option("--bytes-per-second", min=0, help="0: the agent's limit.")]


@app.command()
def start(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that is synced.")] = False,
    priority: Priority = 0,
    workers: Workers = 0,
    rows_per_second: RowsPerSecond = 0,
    bytes_per_second: BytesPerSecond = 0,
    force: Force = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Dump tables that are synced, beside their streams; any other begins by `menura sync start --from dump`."""
    names = named_tables(tables, every=every)
    limits = {"workers": workers, "rows_per_second": rows_per_second, "bytes_per_second": bytes_per_second}
    with connect(api, tenant) as client:
        outcomes = client.start_dumps(source, names, {"priority": priority, "limits": limits, "force": force})
        show_outcomes(outcomes, "dump begun", "not changed", as_json=as_json)


@app.command("list")
def list_dumps(
    source: Annotated[str | None, typer.Argument(help="Only this source's.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Only those that are not over.")] = False,
    every: Annotated[bool, typer.Option("--all", help=f"Not only the newest {LISTED_DUMPS}.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Dumps with their state and progress, the newest first."""
    with connect(api, tenant) as client:
        found = client.dumps(source, running=running, limit=None if every else LISTED_DUMPS)
    if as_json:
        typer.echo(document(Dumps(dumps=found, next_cursor=None)))
    else:
        put(_dumps_table(found), *_notes(found))


@app.command()
def show(dump: DumpArgument, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """All that is known of a dump."""
    with connect(api, tenant) as client:
        found = _find(client, dump)
        detail = client.dump(found.source, found.dump)
    if as_json:
        typer.echo(document(detail))
    else:
        put(_detail_table(detail))


@app.command()
def pause(dump: DumpArgument, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT) -> None:
    """Read no further until it is resumed."""
    _command(api, tenant, dump, "pause", {}, "paused")


@app.command()
def resume(dump: DumpArgument, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT) -> None:
    """Go on with one that was paused, or that failed, where it was."""
    _command(api, tenant, dump, "resume", {}, "goes on")


@app.command()
def cancel(dump: DumpArgument, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT) -> None:
    """End it; what it brought stays, and its table goes on to be synced."""
    _command(api, tenant, dump, "cancel", {}, "cancelled")


@app.command(context_settings={"ignore_unknown_options": True})
def priority(
    dump: DumpArgument,
    priority: Annotated[int, typer.Argument(help="Higher ones go first; equal ones share; below 0 too.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Which dumps of a source go first."""
    _command(api, tenant, dump, "priority", {"priority": priority}, f"has priority {priority}")


@app.command()
def limit(
    dump: DumpArgument,
    workers: Workers = 0,
    rows_per_second: RowsPerSecond = 0,
    bytes_per_second: BytesPerSecond = 0,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Set all three limits; they only narrow what the agent's own configuration allows."""
    limits = {"workers": workers, "rows_per_second": rows_per_second, "bytes_per_second": bytes_per_second}
    _command(api, tenant, dump, "limits", limits, "is limited to that")


def _command(api: str, tenant: str, dump: str, word: str, body: Mapping[str, object], done: str) -> None:
    with connect(api, tenant) as client:
        found = _find(client, dump)
        changed = client.command_dump(found.source, found.dump, word, body)
    outcome = done if changed.changed else "not changed, it was so already"
    Console(soft_wrap=True).print(Text(plain(f"{found.database}.{found.table}: dump {found.dump} {outcome}.")))


def _find(client: ApiClient, dump: str) -> DumpView:
    """The tenant's dump of this name, or the only one whose name begins so."""
    found = [each for each in client.dumps() if each.dump.startswith(dump.lower())] if dump else []
    if len(found) != 1:
        raise DumpUnknown(
            "looking for a dump",
            f"{len(found) or 'no'} dumps have a name that begins with {plain(dump)!r}",
            data="Nothing was changed.",
            remedy="Give more of its name: menura dump list --all shows them.",
        )
    return found[0]


def _dumps_table(found: Iterable[DumpView]) -> Grid:
    """The most important; `menura dump show` has the rest."""
    right = ["DONE", "ROWS", "ROWS/S", "ENDS IN"]
    gives_way = ["ROWS/S", "ROWS", "SOURCE", "ENDS IN"]
    table = Grid("DUMP", "SOURCE", "TABLE", "STATE", *right, right=right, gives_way=gives_way)
    for dump in found:
        table.add_row(
            dump.dump[:SHORT_NAME],
            Text(dump.source),
            Text(plain(f"{dump.database}.{dump.table}"), style="bold"),
            Text(dump.state, style=STATE_STYLES.get(dump.state, "dim")),
            _percent(dump),
            count(dump.rows),
            count(dump.rows_per_second),
            _ends_in(dump),
        )
    return table


def _notes(found: Iterable[DumpView]) -> list[Text]:
    told = [(dump.dump[:SHORT_NAME], dump.reason or dump.warning) for dump in found]
    return [Text(plain(f"{name}: {words}")) for name, words in told if words]


def _detail_table(dump: DumpDetail) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    limits = dump.limits
    lines = (
        ("dump", dump.dump),
        ("table", f"{dump.source}: {dump.database}.{dump.table}"),
        ("state", f"{dump.state}{': ' if dump.reason else ''}{dump.reason}"),
        ("ordered", _ORDERED.get(dump.cause, "by a user")),
        ("done", _done(dump)),
        ("in the lake", f"{count(dump.rows)} rows, {size(dump.bytes)}, {count(dump.chunks)} chunks"),
        ("on its way", f"{count(dump.uncommitted_rows)} rows"),
        ("statistics", f"{count(dump.estimated_rows)} rows, {size(dump.estimated_bytes)}, by the server"),
        ("ranges", f"{dump.ranges_done} of {dump.ranges} done" if dump.ranges else UNKNOWN),
        ("speed", f"{count(dump.rows_per_second)} rows/s, {size(dump.bytes_per_second)}/s"),
        ("ends in", UNKNOWN if dump.estimated_end_us is None else f"about {_ends_in(dump)}"),
        ("reads by", _reads_by(dump)),
        ("log is kept", f"{_seconds(dump.runway_seconds)}, needed for {_seconds(dump.needed_seconds)}"),
        ("warning", dump.warning or "none"),
        ("priority", f"{dump.priority}{', forced' if dump.forced else ''}"),
        (
            "limits",
            f"{limits.workers or UNKNOWN} workers, {count(limits.rows_per_second or None)} rows/s, "
            f"{size(limits.bytes_per_second or None)}/s",
        ),
        ("begun", moment(dump.created_at_us)),
        ("planned", moment(dump.planned_at_us)),
        ("ended", moment(dump.ended_at_us)),
    )
    for label, words in lines:
        table.add_row(Text(label, style="dim"), Text(plain(words)))
    return table


def _reads_by(dump: DumpView) -> str:
    if dump.key:
        return f"key ranges of {', '.join(dump.key)}"
    return UNKNOWN if dump.planned_at_us is None else "one snapshot of the whole table"


def _percent(dump: DumpView) -> str:
    return UNKNOWN if dump.percent is None else f"{dump.percent:.1f} %"


def _done(dump: DumpView) -> str:
    if dump.state == DumpState.DONE:
        return f"all of {count(dump.rows)} rows"
    if dump.expected_rows is None:
        return f"at least {count(dump.rows)} rows, nothing tells how many there are"
    return f"about {_percent(dump)} of about {count(dump.expected_rows)} rows"


def _ends_in(dump: DumpView) -> str:
    return duration(None if dump.estimated_end_us is None else max(0, dump.estimated_end_us - now_us()))


def _seconds(number: int | None) -> str:
    return duration(None if number is None else number * 1_000_000)
