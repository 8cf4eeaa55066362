"""One run: servers, one stack beside them, tables altered in rounds, and what the lake has of them at the end.

A table of lossless ALTERs alone has had no dump. Any other one that was converted has been read again, at most once for
each conversion, and the note that its rows may be stale is gone. Each is what its source is: row for row, and in the
types of its columns.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from menura.naming import lake_column

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import TableEventView
from controlplane_api.commands.access import read_token
from tests.churn.comparison import Lake
from tests.churn.kind import MARKER
from tests.conformance.stops import MYSQL_STOPS
from tests.conversions.driving import Driver
from tests.conversions.tables import Table, tables
from tests.e2e.lake import table_path
from tests.live_source import MysqlSource
from tests.servers import Flavor, Server, server
from tests.stack import Stack, stack, wait_for

#: by name: flavor, release, settings; a name with "default" has the server's own binlog_row_metadata
SERVERS: dict[str, tuple[Flavor, str, dict[str, str]]] = {
    "mysql": ("mysql", "", {}),
    "mysql-default": ("mysql", "", {"binlog_row_metadata": "MINIMAL"}),
    "mariadb": ("mariadb", "", {}),
    "mariadb-default": ("mariadb", "", {"binlog_row_metadata": "NO_LOG"}),
    "mariadb-11-8": ("mariadb", "11.8", {}),
    "mariadb-old-times": ("mariadb", "", {"mysql56_temporal_format": "OFF", "binlog_row_metadata": "NO_LOG"}),
}
DATABASE = "conversions"
#: a run alters more in minutes than a DBA in a day
MOST_REREADS = 3600
_SHOWN_ROWS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    servers: tuple[str, ...]
    #: of each server
    tables: int
    #: ALTERs of each table
    rounds: int
    seed: int = 1
    settle_seconds: float = 1800


@dataclass
class Outcome:
    """Of one server."""

    name: str
    alters: int = 0
    lossless_alters: int = 0
    lossless_tables: int = 0
    converted_tables: int = 0
    algorithms: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    idle: int = 0
    dumps: int = 0
    #: what is not as it has to be
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        named = ", ".join(f"{count} {name or 'unnamed'}" for name, count in sorted(self.algorithms.items()))
        head = (
            f"{self.name}: {self.alters} ALTERs ({named}; {self.refused} refused, {self.idle} idle), of those"
            f" {self.lossless_alters} lossless; {self.lossless_tables} tables of these alone, {self.converted_tables}"
            f" with others; {self.dumps} re-reads; {len(self.wrong)} wrong"
        )
        return "\n".join([head, *(f"  {wrong}" for wrong in self.wrong)])


def convert(plan: Plan, folder: Path) -> list[Outcome]:
    """Raises what a server or the stack could not do."""
    with ExitStack() as ends:
        running = ends.enter_context(stack(folder / "stack"))
        drivers: dict[str, Driver] = {}
        sources: dict[str, Server] = {}
        for name in plan.servers:
            flavor, release, settings = SERVERS[name]
            sources[name] = ends.enter_context(server(flavor, folder / name, release=release, **settings))
            sources[name].create_replication_user()
            is_old, seed = "mysql56_temporal_format" in settings, f"{plan.seed} {name}"
            made = tables(flavor, _version(sources[name]), plan.tables, seed, of_times=is_old)
            drivers[name] = ends.enter_context(Driver(sources[name], DATABASE, made, seed, mixes_formats=is_old))
            drivers[name].create()
        agent = running.agent("conversions", sources, dump={"max_rereads_per_hour": MOST_REREADS})
        ends.enter_context(agent)
        api = ends.enter_context(
            ApiClient(str(running.client.base_url), running.tenant, read_token(running.token_file))
        )
        for name, driver in drivers.items():
            _start(running, api, name, driver)
        with ThreadPoolExecutor(len(drivers)) as pool:
            list(pool.map(lambda driver: _drive(driver, plan.rounds), drivers.values()))
        found, codes = [], frozenset(stop.code for stop in MYSQL_STOPS)
        for name, driver in drivers.items():
            lake = Lake(running, name, MysqlSource(sources[name], DATABASE), codes, began_empty=True)
            found.append(_outcome(api, lake, driver, plan.settle_seconds))
        return found


def _version(server: Server) -> tuple[int, int]:
    major, minor = str(server.run("SELECT VERSION()")[0][0]).split(".")[:2]
    return int(major), int(minor)


def _start(running: Stack, api: ApiClient, source: str, driver: Driver) -> None:
    """The tables are empty: from here on the lake has all of them, without a dump."""
    names = [table.name for table in driver.tables] + [MARKER]
    for name in names:
        running.wait_for_table(source, DATABASE, name)
    api.start(source, [(DATABASE, name) for name in names], "now")
    wait_for(f"{source} to stream", lambda: running.source(source)["tables"].get("streaming") == len(names), 600, 0.5)


def _drive(driver: Driver, rounds: int) -> None:
    driver.fill()
    for _ in range(rounds):
        driver.round()


def _outcome(api: ApiClient, lake: Lake, driver: Driver, settle_seconds: float) -> Outcome:
    names = [table.name for table in driver.tables]
    outcome = Outcome(
        lake.source, algorithms=driver.done.algorithms, refused=driver.done.refused, idle=driver.done.idle
    )
    unsettled = lake.settle([*names, MARKER], settle_seconds)
    outcome.wrong += [f"not settled: {unsettled}"] if unsettled else []
    dumps = Counter(dump.table for dump in api.dumps(lake.source))
    outcome.dumps = sum(dumps.values())
    verdicts = {verdict.table: verdict for verdict in lake.verdicts(names)}
    for table in driver.tables:
        converting = [alter for _, alter in table.taken if alter.is_reread]
        outcome.alters += len(table.taken)
        outcome.lossless_alters += len(table.taken) - len(converting)
        outcome.lossless_tables += not converting
        outcome.converted_tables += bool(converting)
        verdict = verdicts[table.name]
        wrong = [str(verdict)] if verdict.word == "stopped" else []
        wrong += _cells_wrong(lake, table) if verdict.word == "different" else []
        events = api.events(lake.source, DATABASE, table.name).events
        if not _has_begun_anew(events):
            wrong += _types_wrong(lake, table) if not wrong and not table.was_empty else []
            wrong += _events_wrong(events, table)
        if not min(1, len(converting)) <= dumps[table.name] <= len(converting):
            wrong.append(f"{table.name}: {len(converting)} converting ALTERs, {dumps[table.name]} dumps")
        outcome.wrong += [*wrong, *([history(table)] if wrong else [])]
    return outcome


def _cells_wrong(lake: Lake, table: Table) -> list[str]:
    """What differs, of the first rows that do."""
    compared = lake.origin.compare(lake.running, lake.source, table.name)
    at = compared.columns.index("id")
    ours, theirs = ({row[at]: row for row in rows} for rows in (compared.only_in_source, compared.only_in_lake))
    cells = [f"{table.name}: {compared.source_rows} rows in the source, {compared.lake_rows} in the lake"]
    for number, row in list(ours.items())[:_SHOWN_ROWS]:
        other = theirs.get(number)
        if other is None:
            cells.append(f"{table.name}: row {number} only in the source")
            continue
        pairs = zip(compared.columns, row, other, strict=True)
        cells += [f"{table.name}: row {number}: {c}: {a!r:.200} != {b!r:.200}" for c, a, b in pairs if a != b]
    cells += [f"{table.name}: row {number} only in the lake" for number in list(theirs.keys() - ours)[:_SHOWN_ROWS]]
    return cells


def _types_wrong(lake: Lake, table: Table) -> list[str]:
    path = table_path(lake.running.lake, lake.running.tenant, lake.source, lake.database, table.name, "current")
    schema = pa.schema(DeltaTable(str(path)).schema().to_arrow())
    held = {found.name: found.type for found in schema}
    types = {name: (held.get(lake_column(name)), wanted) for name, wanted in table.lake_types.items()}
    return [
        f"{table.name}: column {name} has type {has} in the lake, not {wanted}"
        for name, (has, wanted) in types.items()
        if has != wanted
    ]


def _events_wrong(events: Sequence[TableEventView], table: Table) -> list[str]:
    """Each ALTER that the server has taken is told once, with a reason where it converts and without one elsewhere."""
    told = [(one.statement, one.unlogged_changes) for one in reversed(events) if one.kind == "ALTERED"]
    if [statement for statement, _ in told] != [statement for statement, _ in table.taken]:
        return [f"{table.name}: {len(table.taken)} ALTERs, events of {[statement for statement, _ in told]}"]
    return [
        f"{table.name}: {statement}: told {why!r}, not {alter.converted}"
        for (statement, why), (_, alter) in zip(told, table.taken, strict=True)
        if bool(why) != alter.is_reread
    ]


def _has_begun_anew(events: Sequence[TableEventView]) -> bool:
    """A dump of a table that can't be read by a key begins it anew as it is then; ALTERs of before are not told."""
    started = {event.dump for event in events if event.kind == "DUMP_STARTED"}
    return any(event.kind == "DUMPED" and event.dump not in started for event in events)


def history(table: Table) -> str:
    """How the table came to be what it is."""
    about = f"  {table.create} (key {table.key or 'none'}, image {table.image}, {table.mode.name})"
    lines = [f"{statement}  -- {alter.converted or 'lossless'}" for statement, alter in table.taken]
    return "\n      ".join([about, *lines])


def total(outcomes: Sequence[Outcome]) -> str:
    return (
        f"{sum(one.alters for one in outcomes)} ALTERs, {sum(one.lossless_alters for one in outcomes)} lossless,"
        f" {sum(one.dumps for one in outcomes)} re-reads, {sum(len(one.wrong) for one in outcomes)} wrong"
    )
