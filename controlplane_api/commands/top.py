"""`menura top [SOURCE]`: what sources and their busiest tables do now, again and again.

A table's speed is what has landed of it between two looks; before the second one it is not known. Sources are looked at
each time, tables less often where there are many (`RESTS`). After a failed request the last values stay, marked as old.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from menura.errors import MenuraError
from menura.instants import now_us
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import SourceView, TableView, View
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
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
from controlplane_api.commands.show import STATE_STYLES
from controlplane_api.errors import ApiFailed, ApiUnreachable
from controlplane_api.states import State

app = single_command()

DEFAULT_TABLES = 20
#: of a terminal: headings, and the last lines
_OTHER_LINES = 10
#: times as long as a look at tables took, tables rest: the API is asked for them a tenth of the time at most
RESTS = 9


class TableSpeed(View):
    source: str
    database: str
    table: str
    state: State
    #: landed between the two looks; null while unknown
    rows_per_second: float | None
    bytes_per_second: float | None
    #: now minus the commit time of its last change that landed, and that is in the lake; null while unknown
    freshness_us: int | None
    lake_freshness_us: int | None
    #: of the dump that runs; null: there is none, or it is not known
    dump_percent: float | None
    dump_rows_per_second: float | None


class Top(View):
    at_us: int
    sources: list[SourceView]
    #: the busiest first
    tables: list[TableSpeed]
    #: that are synced
    total: int


@dataclass(frozen=True, slots=True)
class Look:
    #: when its tables were looked at; its sources may be newer
    at_us: int
    sources: Sequence[SourceView]
    #: that are synced, each with its source
    tables: Sequence[tuple[str, TableView]]


@app.command()
def top(
    source: Annotated[str, typer.Argument(help="One alone; default: all.", show_default=False)] = "",
    once: Annotated[bool, typer.Option("--once", help="Print it once, after two looks.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, metavar="SECONDS", help="Between two looks.")
    ] = 2.0,
    tables: Annotated[
        int, typer.Option("--tables", min=0, metavar="N", help="Of the busiest tables; 0: as many as have room.")
    ] = 0,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Speed, lag, freshness and dumps of sources and their busiest tables, until Ctrl-C."""
    with connect(api, tenant) as client:
        if once or as_json:
            before = look(client, source)
            with Console(stderr=True).status(f"looking for {interval:g} s"):
                time.sleep(interval)
            found = compared(before, look(client, source), tables or DEFAULT_TABLES)
            if as_json:
                typer.echo(document(found))
            else:
                put(shown(found))
            return
        looks = Looks(client, source)
        with suppress(KeyboardInterrupt), Live(auto_refresh=False, screen=True) as live:
            follow(looks, live, interval, tables)


class Looks:
    """The last two of them. The first one raises why it failed; of a later one `failure` says so."""

    def __init__(self, client: ApiClient, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._source, self._clock = client, source, clock
        self.failure: MenuraError | None = None
        self.before = self.now = self._look()

    def again(self) -> None:
        try:
            if self._clock() < self._due:
                self.now = replace(self.now, sources=source_views(self._client, self._source))
                self._sources_at_us = now_us()
            else:
                self.before, self.now = self.now, self._look()
            self.failure = None
        except (ApiUnreachable, ApiFailed) as failure:
            self.failure = failure

    def notes(self) -> list[Text]:
        """What is old of that which is shown, and why."""
        old, tables = [], f"Tables are of {moment(self.now.at_us)}"
        if self.failure is not None:
            old.append(Text(f"Old, of {moment(self._sources_at_us)}: {self.failure}", style="bold red"))
        if self.now.at_us < self._sources_at_us:
            old.append(Text(f"{tables}: a look at all of them takes {self._took_seconds:.1f} s", style="dim"))
        return old

    def _look(self) -> Look:
        began = self._clock()
        try:
            found = look(self._client, self._source)
        finally:  # a failed one has its cost, too
            ended = self._clock()
            self._took_seconds = ended - began
            self._due = ended + RESTS * self._took_seconds
        self._sources_at_us = found.at_us
        return found


def follow(looks: Looks, live: Live, interval: float, tables: int, pause: Callable[[float], None] = time.sleep) -> None:
    """Until Ctrl-C."""
    while True:
        room = max(1, live.console.height - _OTHER_LINES - len(looks.now.sources))
        found = compared(looks.before, looks.now, tables or room)
        live.update(Group(*looks.notes(), shown(found)), refresh=True)
        pause(interval)
        looks.again()


def look(client: ApiClient, source: str) -> Look:
    sources = source_views(client, source)
    tables = [(each.source, table) for each in sources for table in client.tables(each.source, synced=True)]
    return Look(now_us(), sources, tables)


def source_views(client: ApiClient, source: str) -> Sequence[SourceView]:
    return [client.source(source)] if source else client.fleet().sources


def compared(before: Look, now: Look, most: int) -> Top:
    """The `most` busiest tables; one that was not there before has no speed."""
    former = {(source, table.database, table.table): table for source, table in before.tables}
    seconds = (now.at_us - before.at_us) / 1e6
    found = [
        _speed(source, former.get((source, table.database, table.table)), table, seconds)
        for source, table in now.tables
    ]
    found.sort(key=lambda each: (-(each.rows_per_second or 0) - (each.dump_rows_per_second or 0), each.source))
    return Top(at_us=now.at_us, sources=list(now.sources), tables=found[:most], total=len(found))


def _speed(source: str, before: TableView | None, now: TableView, seconds: float) -> TableSpeed:
    return TableSpeed(
        source=source,
        database=now.database,
        table=now.table,
        state=now.state,
        rows_per_second=None if before is None else per_second(before.rows, now.rows, seconds),
        bytes_per_second=None if before is None else per_second(before.bytes, now.bytes, seconds),
        freshness_us=now.freshness_us,
        lake_freshness_us=None if now.lake is None else now.lake.freshness_us,
        dump_percent=None if now.dump is None else now.dump.percent,
        dump_rows_per_second=None if now.dump is None else now.dump.rows_per_second,
    )


def per_second(before: int, now: int, seconds: float) -> float | None:
    """None: no time has passed, or the counter began anew.

    >>> per_second(100, 300, 2.0), per_second(300, 100, 2.0), per_second(1, 1, 0.0)
    (100.0, None, None)
    """
    return (now - before) / seconds if seconds > 0 and now >= before else None


def shown(found: Top) -> Group:
    more = found.total - len(found.tables)
    rest = [Text(f"and {more:,} more tables; --tables N shows more", style="dim")] if more > 0 else []
    return Group(_sources(found.sources), _tables(found.tables), *rest)


def _sources(found: Iterable[SourceView]) -> Grid:
    right = ["ROWS/S", "READ/S", "LAG", "FRESHNESS", "LAKE LAG", "DUMPS"]
    gives_way = ["AGENT", "DUMPS", "READ/S"]
    grid = Grid("SOURCE", "AGENT", *right, right=right, folds=["LAKE LAG"], gives_way=gives_way)
    for source in found:
        grid.add_row(
            Text(source.source, style="bold"),
            Text(source.agent or "", style="green" if source.connected else "red"),
            count(source.rows_per_second),
            size(source.read_bytes_per_second),
            duration(source.lag_us),
            duration(source.freshness_us),
            ", ".join(duration(lake.landing_lag_us) for lake in source.lakes) or duration(None),
            count(source.dumps),
        )
    return grid


def _tables(found: Iterable[TableSpeed]) -> Grid:
    right = ["ROWS/S", "LANDED/S", "FRESHNESS", "IN LAKE", "DUMP"]
    gives_way = ["SOURCE", "LANDED/S", "IN LAKE"]
    grid = Grid("SOURCE", "TABLE", "STATE", *right, right=right, gives_way=gives_way, name="TABLE")
    for table in found:
        grid.add_row(
            Text(table.source),
            Text(plain(f"{table.database}.{table.table}"), style="bold"),
            Text(table.state.replace("_", " "), style=STATE_STYLES.get(table.state, "dim")),
            count(table.rows_per_second),
            size(table.bytes_per_second),
            duration(table.freshness_us),
            duration(table.lake_freshness_us),
            "" if table.dump_percent is None else f"{table.dump_percent:.1f} %",
        )
    return grid
