"""`menura tables | events | lakes | status`: what the API says, as tables or as its JSON."""

import time
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from menura.instants import now_us
from menura.naming import dump_anew
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.table_reasons import TableReason
from controlplane_api.api.views import (
    AgentView,
    DumpView,
    Fleet,
    SinkView,
    SourceView,
    TableEventView,
    Tables,
    TableView,
    UnloggedView,
)
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Tenant,
    count,
    duration,
    moment,
    plain,
    put,
    single_command,
    size,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TableArgument, parse_table
from controlplane_api.errors import RequestInvalid
from controlplane_api.states import LakeState, State

tables_app, events_app, lakes_app, status_app = (single_command() for _ in range(4))

STATE_STYLES = {
    State.STREAMING: "green",
    State.CATCHING_UP: "cyan",
    State.DUMPING: "cyan",
    State.PENDING: "yellow",
    State.WAITING: "bold yellow",
    State.DENIED: "magenta",
    State.FAILED: "bold red",
}
_WITHOUT_SYNC = (State.NOT_SYNCED, State.STOPPED, State.DENIED, State.FAILED)
#: reasons that the state, or another part of a table's note, says already
_SAID_ELSEWHERE = (
    TableReason.FOLLOWS,
    TableReason.NEVER_STARTED,
    TableReason.DENIED_BY_POLICY,
    TableReason.GONE_FROM_SERVER,
)
LAKE_STYLES = {
    LakeState.FOLLOWING: "green",
    LakeState.BEHIND: "yellow",
    LakeState.UNKNOWN: "yellow",
    LakeState.FAILED: "bold red",
}
WATCH_SECONDS = 1.0
#: tables that one line names before their problem
NAMED_TABLES = 3
#: in a status; `menura tables` shows all
STATUS_TABLES = 50


def show_agents(found: Sequence[AgentView]) -> None:
    put(_agents_table(found), *_refusals(found))


def show_sources(found: Sequence[SourceView]) -> None:
    put(_sources_table(found), *_problems(found, []))


@tables_app.command()
def tables(
    source: Annotated[str, typer.Argument(help="May be left out where the tenant has one alone.")] = "",
    text: Annotated[str, typer.Option("--text", help="Part of DATABASE.TABLE.")] = "",
    state: Annotated[State | None, typer.Option("--state", help="Only tables in this state.")] = None,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The tables of a source."""
    with connect(api, tenant) as client:
        source = source or _only_source(client)
        found = client.tables(source, text=text, state=state.value if state else "")
    if as_json:
        typer.echo(document(Tables(tables=found, total=len(found), next_cursor=None)))
    else:
        put(_tables_table((source, table) for table in found), *_problems([], found))


def _only_source(client: ApiClient) -> str:
    """Raises `RequestInvalid`."""
    names = [each.source for each in client.fleet().sources]
    if len(names) != 1:
        found = (
            f"it names no source, and there are {len(names)}: {', '.join(names)}" if names else "there is no source yet"
        )
        raise RequestInvalid("reading the command", found, remedy="Run: menura tables SOURCE")
    return names[0]


@events_app.command()
def events(
    source: str,
    table: TableArgument,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The last changes of a table other than of rows: its definition, truncates, dumps; the last one first."""
    with connect(api, tenant) as client:
        found = client.events(source, *parse_table(table))
    if as_json:
        typer.echo(document(found))
    else:
        put(_events_table(found.events))


@lakes_app.command()
def lakes(
    forget: Annotated[str, typer.Option("--forget", metavar="LAKE", help="One whose sink is no more.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The lakes whose sinks report, of all tenants."""
    with connect(api, tenant) as client:
        if forget:
            client.forget_lake(forget)
        found = client.lakes()
    if as_json:
        typer.echo(document(found))
    else:
        notes = [(lake.lake, lake.problem.message) for lake in found.lakes if lake.problem is not None]
        put(_lakes_table(found.lakes), *[Text(plain(f"{name}: {words}"), style="red") for name, words in notes])


@status_app.command()
def status(
    source: Annotated[str, typer.Argument(help="One alone; default: all.", show_default=False)] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Sources and the tables that are synced: state, and how far they are on their way from source to lake."""
    with connect(api, tenant) as client:
        if as_json:
            typer.echo(document(_fleet(client, source)))
            return
        if not watch:
            put(_status(client, source))
            return
        with Live(_status(client, source), auto_refresh=False, screen=True) as live:
            try:
                while True:
                    time.sleep(WATCH_SECONDS)
                    live.update(_status(client, source), refresh=True)
            except KeyboardInterrupt:
                return


def _fleet(client: ApiClient, source: str) -> Fleet:
    """Of one source, if it is named, that and its agent. Raises `ApiFailed` where nobody knows it."""
    fleet = client.fleet()
    if not source:
        return fleet
    one = client.source(source)
    agents = [agent for agent in fleet.agents if agent.agent == one.agent]
    return fleet.model_copy(update={"sources": [one], "agents": agents})


def _status(client: ApiClient, source: str) -> Group:
    fleet = _fleet(client, source)
    synced = [(each.source, table) for each in fleet.sources for table in client.tables(each.source, synced=True)]
    synced.sort(key=lambda named: (named[1].state != State.FAILED, named[1].state != State.WAITING))
    more = len(synced) - STATUS_TABLES
    parts: list[RenderableType] = [
        _sources_table(fleet.sources),
        _tables_table(synced[:STATUS_TABLES]),
        *_kept_alone(fleet.sources if source else []),
        *_refusals(fleet.agents),
        *_problems(fleet.sources, [table for _, table in synced[:STATUS_TABLES]]),
    ]
    if more > 0:
        parts.append(Text(f"and {more} more tables: menura tables SOURCE", style="dim"))
    return Group(*parts)


def _agents_table(found: Iterable[AgentView]) -> Grid:
    columns = ["AGENT", "CONNECTED", "IDENTITY", "HOST", "VERSION", "SEEN", "MEMORY", "SOURCES"]
    gives_way = ["IDENTITY", "MEMORY", "VERSION", "HOST"]
    table = Grid(*columns, right=["SEEN", "MEMORY"], folds=["SOURCES"], gives_way=gives_way)
    now = now_us()
    for agent in found:
        table.add_row(
            Text(agent.agent, style="bold"),
            _connected(agent),
            Text("its word", style="yellow") if agent.enrolled_at_us is None else Text("enrolled", style="green"),
            Text(plain(agent.hostname)),
            Text(plain(agent.version)),
            f"{duration(max(0, now - agent.seen_at_us))} ago" if agent.seen_at_us else "never",
            size(agent.resident_memory_bytes),
            Text(", ".join(agent.sources)),
        )
    return table


def _connected(agent: AgentView) -> Text:
    if agent.revoked_at_us is not None:
        return Text("revoked", style="bold red")
    return Text("yes", style="green") if agent.connected else Text("no", style="red")


def _refusals(found: Iterable[AgentView]) -> list[Text]:
    return [
        Text(plain(f"{agent.agent}: {agent.problem.message}"), style="red")
        for agent in found
        if agent.problem is not None
    ]


def _sources_table(found: Iterable[SourceView]) -> Grid:
    right = ["SYNCED", "LAG", "FRESHNESS", "ROWS", "ROWS/S", "LANDED", "IN LAKE"]
    columns = ["SOURCE", "AGENT", "SERVER", "SYNCED", "LAG", "ROWS", "ROWS/S", "LANDED", "FRESHNESS", "LAKE", "IN LAKE"]
    gives_way = ["POSITION", "LOG KEPT", "SERVER", "ROWS", "LANDED", "ROWS/S", "IN LAKE", "SYNCED", "LAG"]
    table = Grid(
        *columns, "LOG KEPT", "POSITION", right=right, folds=["AGENT", "SERVER", "LAKE", "IN LAKE"], gives_way=gives_way
    )
    now = now_us()
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
            count(source.rows),
            count(source.rows_per_second),
            UNKNOWN if source.committed_at_us is None else f"{duration(max(0, now - source.committed_at_us))} ago",
            duration(source.freshness_us),
            _cuts(source),
            ", ".join(duration(lake.freshness_us) for lake in source.lakes) or UNKNOWN,
            log_kept(source),
            Text(plain(source.committed_position[-48:])),
        )
    return table


def _tables_table(found: Iterable[tuple[str, TableView]]) -> Grid:
    right = ["ROWS", "FRESHNESS", "IN LAKE", "ABOUT", "SIZE"]
    columns = ["SOURCE", "TABLE", "STATE", "REASON", "ROWS", "FRESHNESS", "LAKE", "IN LAKE", "ABOUT", "SIZE", "NOTE"]
    gives_way = ["SIZE", "ABOUT", "IN LAKE", "LAKE", "ROWS", "FRESHNESS", "SOURCE", "REASON"]
    table = Grid(*columns, right=right, folds=["LAKE"], gives_way=gives_way, below="NOTE", name="TABLE")
    for source, row in found:
        table.add_row(
            Text(source),
            Text(plain(f"{row.database}.{row.table}"), style="bold"),
            Text(row.state.replace("_", " "), style=STATE_STYLES.get(row.state, "dim")),
            Text(row.reason),
            count(row.rows),
            duration(row.freshness_us),
            _table_cut(row),
            UNKNOWN if row.lake is None else duration(row.lake.freshness_us),
            count(row.estimated_rows),
            size(row.size_bytes),
            Text(plain(_note(source, row))),
        )
    return table


def _events_table(found: Iterable[TableEventView]) -> Grid:
    columns = ["COMMITTED", "EVENT", "NUMBER", "STATEMENT", "POSITION"]
    table = Grid(*columns, right=["NUMBER"], folds=["STATEMENT"], gives_way=["POSITION", "NUMBER"])
    for event in found:
        words = " ".join(event.statement.split()) or event.dump  # it may stand in many lines
        if event.unlogged_changes:
            words = f"{words} ({event.unlogged_changes})" if words else event.unlogged_changes
        table.add_row(
            moment(event.commit_timestamp_us),
            Text(event.kind.replace("_", " ").lower(), style="bold"),
            str(event.gsn),
            Text(plain(f"{words} -> {'.'.join(event.new_name)}" if event.new_name else words)),
            Text(plain(event.position[-48:])),
        )
    return table


def _lakes_table(found: Iterable[SinkView]) -> Grid:
    columns = ["LAKE", "SINK", "STOPPED TABLES", "HEARD", "ADDRESS", "LANDING"]
    table = Grid(*columns, right=["STOPPED TABLES", "HEARD"], gives_way=["LANDING", "ADDRESS"])
    now = now_us()
    for lake in found:
        heard = UNKNOWN if lake.received_at_us is None else f"{duration(max(0, now - lake.received_at_us))} ago"
        table.add_row(
            Text(lake.lake, style="bold"),
            Text(lake.state, style=LAKE_STYLES[lake.state]),
            count(lake.stopped_tables),
            heard,
            Text(plain(lake.url)),
            Text(plain(lake.landing)),
        )
    return table


def _kept_alone(found: Iterable[SourceView]) -> list[Text]:
    """Where one source is asked for, also in a narrow terminal."""
    told = [(each.source, log_kept(each)) for each in found]
    return [
        Text(plain(f"The server of {name} keeps its log: {'not known' if kept == UNKNOWN else kept}."))
        for name, kept in told
    ]


def log_kept(source: SourceView) -> str:
    """How long its server keeps its log from now on."""
    if source.log_is_unlimited:
        return "unlimited"
    if source.log_room_bytes is not None:
        return f"{size(source.log_room_bytes)} more"
    return duration(None if source.log_retention_seconds is None else source.log_retention_seconds * 1_000_000)


def _cuts(source: SourceView) -> Text:
    """How far the source is in each lake."""
    words = [
        (f"cut {count(lake.cut)} of {count(source.committed_cut)}", LAKE_STYLES[lake.state])
        if lake.state is LakeState.FOLLOWING
        else (lake.state, LAKE_STYLES[lake.state])
        for lake in source.lakes
    ]
    return Text(", ").join(Text(word, style=style) for word, style in words) if words else Text(UNKNOWN)


def _table_cut(row: TableView) -> Text:
    if row.lake is None:
        return Text(UNKNOWN)
    stands = f" at cut {count(row.lake.cut)}" if row.lake.cut is not None else ""
    return Text(f"{row.lake.state}{stands}", style=LAKE_STYLES[row.lake.state])


def _note(source: str, row: TableView) -> str:
    dump = dump_anew(source, row.database, row.table)
    notes = [
        "" if row.reason in _SAID_ELSEWHERE else row.meaning.rstrip("."),
        f"held up in stage {row.stage}" if row.stage else "",
        "its sink was asked to try it again" if row.lake is not None and row.lake.retries else "",
        f"in the lake, {row.lake.schema_changes}" if row.lake is not None and row.lake.schema_changes else "",
        "refused by the agent's policy" if row.denied else "",
        "gone from the server" if row.gone else "",
        f"earlier rows missing: {row.earlier_rows_missing}" if row.earlier_rows_missing else "",
        _unlogged_note(row.unlogged, dump) if row.unlogged is not None else "",
        f"without {', '.join(row.ignored_columns)}" if row.ignored_columns else "",
        f"begins: {row.start}" if row.start else "",
        _dump_note(row.dump) if row.dump is not None else "",
    ]
    return "; ".join(note for note in notes if note)


def _unlogged_note(note: UnloggedView, dump: str) -> str:
    """`dump`: the command that brings the rows."""
    first = note.causes[0]
    others = len(note.causes) + note.more - 1
    more = f", and {others} more" if others else ""
    healed = "a dump brings them" if note.reread else f"no dump is ordered; run: {dump}"
    if note.comparison:
        healed = "it is compared with its source, and what differs is read again"
    elif note.instead:
        healed = f"{healed}, since it could not be compared: {note.instead}"
    return f"rows may be stale since {first.position}: {first.why}{more}; {healed}"


def _problems(of_sources: Sequence[SourceView], of_tables: Iterable[TableView]) -> list[Text]:
    """Each problem once, with whom it concerns."""
    told: dict[str, list[str]] = {}
    for source in of_sources:
        for problem in (source.stage_problem, source.problem):
            if problem is not None:
                told.setdefault(problem.message, [source.source])
    of_stages = set(told)
    for table in of_tables:
        if table.problem is not None and table.problem.message not in of_stages:
            told.setdefault(table.problem.message, []).append(f"{table.database}.{table.table}")
    red = [Text(plain(f"{_named(names)}: {words}"), style="red") for words, names in told.items()]
    warnings = [(source.source, warning.message) for source in of_sources for warning in source.warnings]
    return red + [Text(plain(f"{source}: {words}"), style="yellow") for source, words in warnings if words not in told]


def _named(names: list[str]) -> str:
    more = len(names) - NAMED_TABLES
    return ", ".join(names[:NAMED_TABLES]) + (f" and {more} more" if more > 0 else "")


def _dump_note(dump: DumpView) -> str:
    done = "" if dump.percent is None else f" {dump.percent:.1f} %"
    return f"dump {dump.state}{done}{': ' if dump.reason else ''}{dump.reason}"
