"""`menura agents | sources | tables | events | status`: what the API says, as tables or as its JSON."""

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from menura.instants import now_us
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import (
    Agents,
    AgentView,
    DumpView,
    Fleet,
    Sources,
    SourceView,
    TableEventView,
    Tables,
    TableView,
)
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    count,
    duration,
    grid,
    moment,
    plain,
    put,
    single_command,
    size,
)
from controlplane_api.commands.tables import parse_table
from controlplane_api.states import State

agents_app, sources_app, tables_app, events_app, status_app = (single_command() for _ in range(5))

STATE_STYLES = {
    State.STREAMING: "green",
    State.CATCHING_UP: "cyan",
    State.DUMPING: "cyan",
    State.PENDING: "yellow",
    State.DENIED: "magenta",
    State.FAILED: "bold red",
}
_WITHOUT_SYNC = (State.NOT_SYNCED, State.STOPPED, State.DENIED, State.FAILED)
WATCH_SECONDS = 1.0
#: in a status; `menura tables` shows all
STATUS_TABLES = 50


@agents_app.command()
def agents(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """The tenant's agents."""
    with ApiClient(api, tenant) as client:
        fleet = client.fleet()
    if as_json:
        typer.echo(Agents(agents=fleet.agents).model_dump_json(indent=2))
    else:
        put(_agents_table(fleet.agents))


@sources_app.command()
def sources(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """The tenant's sources, with their lag and what has landed."""
    with ApiClient(api, tenant) as client:
        fleet = client.fleet()
    if as_json:
        typer.echo(Sources(sources=fleet.sources).model_dump_json(indent=2))
    else:
        put(_sources_table(fleet.sources), *_problems(fleet.sources, []))


@tables_app.command()
def tables(
    source: str,
    text: Annotated[str, typer.Option("--text", help="Part of DATABASE.TABLE.")] = "",
    state: Annotated[State | None, typer.Option("--state", help="Only tables in this state.")] = None,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The tables of a source."""
    with ApiClient(api, tenant) as client:
        found = client.tables(source, text=text, state=state.value if state else "")
    if as_json:
        typer.echo(Tables(tables=found, total=len(found), next_cursor=None).model_dump_json(indent=2))
    else:
        put(_tables_table((source, table) for table in found), *_problems([], found))


@events_app.command()
def events(
    source: str,
    table: Annotated[str, typer.Argument(help="DATABASE.TABLE; `a.b`.`c` where a name has a dot.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The last changes of a table other than of rows: its definition, truncates, dumps; the last one first."""
    with ApiClient(api, tenant) as client:
        found = client.events(source, *parse_table(table))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        put(_events_table(found.events))


@status_app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Sources and the tables that are synced: state, lag, freshness, rows."""
    with ApiClient(api, tenant) as client:
        if as_json:
            typer.echo(client.fleet().model_dump_json(indent=2))
            return
        if not watch:
            put(_status(client))
            return
        with Live(_status(client), auto_refresh=False, screen=True) as live:
            try:
                while True:
                    time.sleep(WATCH_SECONDS)
                    live.update(_status(client), refresh=True)
            except KeyboardInterrupt:
                return


def _status(client: ApiClient) -> Group:
    fleet: Fleet = client.fleet()
    synced = [(each.source, table) for each in fleet.sources for table in client.tables(each.source, synced=True)]
    synced.sort(key=lambda named: named[1].state != State.FAILED)
    more = len(synced) - STATUS_TABLES
    parts: list[RenderableType] = [
        _sources_table(fleet.sources),
        _tables_table(synced[:STATUS_TABLES]),
        *_problems(fleet.sources, [table for _, table in synced[:STATUS_TABLES]]),
    ]
    if more > 0:
        parts.append(Text(f"and {more} more tables: menura tables SOURCE", style="dim"))
    return Group(*parts)


def _agents_table(found: Iterable[AgentView]) -> Table:
    table = grid("AGENT", "CONNECTED", "HOST", "VERSION", "SEEN", "MEMORY", "SOURCES", right=["SEEN", "MEMORY"])
    now = now_us()
    for agent in found:
        table.add_row(
            Text(agent.agent, style="bold"),
            Text("yes", style="green") if agent.connected else Text("no", style="red"),
            Text(plain(agent.hostname)),
            Text(plain(agent.version)),
            f"{duration(max(0, now - agent.seen_at_us))} ago",
            size(agent.resident_memory_bytes),
            Text(", ".join(agent.sources)),
        )
    return table


def _sources_table(found: Iterable[SourceView]) -> Table:
    right = ["SYNCED", "LAG", "FRESHNESS", "ROWS", "ROWS/S"]
    table = grid("SOURCE", "AGENT", "SERVER", "SYNCED", "LAG", "FRESHNESS", "ROWS", "ROWS/S", "POSITION", right=right)
    for source in found:
        total = sum(source.tables.values())
        synced = total - sum(source.tables.get(state, 0) for state in _WITHOUT_SYNC)
        style = "green" if source.connected else "red"
        table.add_row(
            Text(source.source, style="bold"),
            Text(source.agent or "", style=style),
            Text(plain(f"{source.flavor} {source.server_version}")),
            f"{synced}/{total}",
            duration(source.lag_us),
            duration(source.freshness_us),
            count(source.rows),
            count(source.rows_per_second),
            Text(plain(source.committed_position[-48:])),
        )
    return table


def _tables_table(found: Iterable[tuple[str, TableView]]) -> Table:
    right = ["ROWS", "FRESHNESS", "ABOUT", "SIZE"]
    table = grid("SOURCE", "TABLE", "STATE", "ROWS", "FRESHNESS", "ABOUT", "SIZE", "NOTE", right=right)
    for source, row in found:
        table.add_row(
            Text(source),
            Text(plain(f"{row.database}.{row.table}"), style="bold"),
            Text(row.state.replace("_", " "), style=STATE_STYLES.get(row.state, "dim")),
            count(row.rows),
            duration(row.freshness_us),
            count(row.estimated_rows),
            size(row.size_bytes),
            Text(plain(_note(row))),
        )
    return table


def _events_table(found: Iterable[TableEventView]) -> Table:
    table = grid("COMMITTED", "EVENT", "NUMBER", "STATEMENT", "POSITION", right=["NUMBER"])
    for event in found:
        words = event.statement or event.dump
        table.add_row(
            moment(event.commit_timestamp_us),
            Text(event.kind.replace("_", " ").lower(), style="bold"),
            str(event.gsn),
            Text(plain(f"{words} -> {'.'.join(event.new_name)}" if event.new_name else words)),
            Text(plain(event.position[-48:])),
        )
    return table


def _note(row: TableView) -> str:
    notes = [
        "refused by the agent's policy" if row.denied else "",
        "gone from the server" if row.gone else "",
        f"earlier rows missing: {row.earlier_rows_missing}" if row.earlier_rows_missing else "",
        f"without {', '.join(row.ignored_columns)}" if row.ignored_columns else "",
        f"begins: {row.start}" if row.start else "",
        _dump_note(row.dump) if row.dump is not None else "",
    ]
    return "; ".join(note for note in notes if note)


def _problems(of_sources: Iterable[SourceView], of_tables: Iterable[TableView]) -> list[Text]:
    told: list[tuple[str, str]] = []
    for source in of_sources:
        if not source.connected:
            told.append((source.source, f"its agent {source.agent or ''} is not connected: nothing of it is read."))
        if source.problem is not None:
            told.append((source.source, source.problem.message))
    told += [(f"{table.database}.{table.table}", table.problem.message) for table in of_tables if table.problem]
    return [Text(plain(f"{name}: {words}"), style="red") for name, words in told]


def _dump_note(dump: DumpView) -> str:
    done = "" if dump.percent is None else f" {dump.percent:.1f} %"
    return f"dump {dump.state}{done}{': ' if dump.reason else ''}{dump.reason}"
