"""One run: a server, a whole stack beside it, all that changes for so many seconds, and the comparison at the end."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.churn.comparison import Lake, Verdict
from tests.churn.faults import Faults
from tests.churn.processes import memory_of, told
from tests.churn.statements import STEPS, Ddl
from tests.churn.tables import ASIDE, COLD, MARKER, TABLES, Shape, tables_of
from tests.churn.workload import SESSION, Workload
from tests.conformance.stops import CODES
from tests.servers import Flavor, Server, server
from tests.stack import stack, wait_for

DATABASE = "churn"
SOURCE = "churn"
ROWS = 300
KILLS = {"kill_agent": "agent", "kill_gateway": "gateway", "kill_sink": "sink"}
INGREDIENTS = (*TABLES, *KILLS)
#: by name: flavor, release, settings
SERVERS: dict[str, tuple[Flavor, str, dict[str, str]]] = {
    "mariadb": ("mariadb", "", {}),
    "mariadb-11.8": ("mariadb", "11.8", {}),
    "mysql": ("mysql", "", {}),
    # the engine carries foreign keys' actions out and logs none of them, as MySQL does up to 9.5
    "mysql-native-keys": ("mysql", "", {"innodb_native_foreign_keys": "ON"}),
    "mariadb-minimal": ("mariadb", "", {"binlog_row_metadata": "MINIMAL"}),
    "mysql-minimal": ("mysql", "", {"binlog_row_metadata": "MINIMAL"}),
}
#: re-reads that a table may have in an hour: a run has more than a DBA
MOST_REREADS = 3600


@dataclass(frozen=True, slots=True)
class Plan:
    server: str
    seed: int
    seconds: float
    rate: float
    ingredients: frozenset[str]
    #: codes of stops that are no failure: those that agent/CONFORMANCE.md lists
    allowed: frozenset[str] = CODES
    #: a run goes on beyond its seconds until it has so many, with statements and kills: a busy machine is slow
    least_transactions: int = 0


@dataclass
class Report:
    plan: Plan
    verdicts: list[Verdict] = field(default_factory=list)
    unsettled: str = ""
    transactions: int = 0
    statements: list[tuple[float, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    #: seconds since the start, and whom
    kills: list[tuple[float, str]] = field(default_factory=list)
    settled_seconds: float = 0.0
    #: dumps by their cause and how they ended
    dumps: dict[str, int] = field(default_factory=dict)
    memory: str = ""
    #: warnings and errors of the platform's processes
    told: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Verdict]:
        return [
            verdict
            for verdict in self.verdicts
            if verdict.word == "different" or (verdict.word == "stopped" and verdict.code not in self.plan.allowed)
        ]

    @property
    def is_sound(self) -> bool:
        return not self.unsettled and not self.failed

    def __str__(self) -> str:
        plan = self.plan
        head = (
            f"{plan.server}, seed {plan.seed}: {self.transactions} transactions, {len(self.statements)} statements"
            f" ({len(self.refused)} refused), {len(self.kills)} kills, settled in {self.settled_seconds:.0f} s"
        )
        dumps = ", ".join(f"{count} {what}" for what, count in sorted(self.dumps.items()))
        lines = [head, f"  dumps: {dumps}", f"  {self.memory}", *(f"  {verdict}" for verdict in self.verdicts)]
        for verdict in self.failed:
            about = [f"    {at:6.1f} s  {text}" for at, text in self.statements if verdict.table in text]
            lines += [f"  statements on {verdict.table}:", *about]
        return "\n".join([*lines, *([f"  not settled: {self.unsettled}"] if self.unsettled else [])])


def churn(plan: Plan, folder: Path) -> Report:
    """Raises what a writer or the DDL could not do."""
    flavor, release, settings = SERVERS[plan.server]
    report = Report(plan)
    with server(flavor, folder / "server", release=release, **settings) as source, stack(folder / "stack") as running:
        source.create_replication_user()
        shapes = tables_of(plan.ingredients, flavor)
        create(source, shapes, plan)
        agent = running.agent("churn", {SOURCE: source}, dump={"max_rereads_per_hour": MOST_REREADS})
        with agent:
            for table in (*shapes, MARKER):
                running.start_sync(SOURCE, DATABASE, table, "dump")
            processes = {"agent": agent, "gateway": running.gateway, "sink": running.sink, "api": running.api}
            victims = {kill: processes[name] for kill, name in KILLS.items() if kill in plan.ingredients}
            with memory_of(processes) as memory:
                change(plan, source, shapes, Faults(victims, plan.seed), report)
                began = time.monotonic()
                lake = Lake(running, SOURCE, source, DATABASE)
                report.unsettled = lake.settle((*shapes, MARKER))
                report.settled_seconds = time.monotonic() - began
            report.verdicts = lake.verdicts(shapes)
            report.dumps, report.memory = lake.dumps(), str(memory)
        report.told = told({name: process.log for name, process in processes.items()})
    return report


def create(source: Server, shapes: dict[str, Shape], plan: Plan) -> None:
    """The tables, with rows that the dumps bring."""
    source.run(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    aside = {name: columns for key, made in ASIDE.items() if key in plan.ingredients for name, columns in made.items()}
    source.run(
        f"CREATE TABLE {MARKER} (id BIGINT AUTO_INCREMENT PRIMARY KEY)",
        *(f"CREATE TABLE {name} ({shape.columns}) {shape.options}" for name, shape in shapes.items()),
        *(f"CREATE TABLE {name} ({columns})" for name, columns in aside.items()),
        database=DATABASE,
    )
    workload = Workload(source, DATABASE, shapes, -plan.seed, 10_000)
    workload.start()
    try:
        wait_for("the first rows", lambda: workload.done.transactions > ROWS or workload.done.failures)
    finally:
        workload.stop()
    _raise(workload.done.failures)
    for name, shape in shapes.items():
        if "id" in shape.key:
            add_cold_rows(source, name)


def add_cold_rows(source: Server, table: str) -> None:
    """The rows of now once more, under keys that no writer uses."""
    columns = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"
        " AND column_name <> 'id' AND extra NOT LIKE '%%GENERATED%%'"
    )
    with source.connect(database=DATABASE, init_command=SESSION) as connection, connection.cursor() as cursor:
        cursor.execute(columns, (table,))
        names = ", ".join(f"`{name}`" for (name,) in cursor.fetchall())
        cursor.execute(f"INSERT INTO {table} (id, {names}) SELECT id + {COLD}, {names} FROM {table}")


def change(plan: Plan, source: Server, shapes: dict[str, Shape], faults: Faults, report: Report) -> None:
    """Everything at once, for the plan's seconds."""
    ended = threading.Event()
    workload = Workload(source, DATABASE, shapes, plan.seed, plan.rate)
    ddl = Ddl(source, DATABASE, sorted(plan.ingredients & STEPS.keys() & _present(shapes)), plan.seed)
    failures: list[Exception] = []

    def until_ended(work: Callable[[Callable[[], bool], Callable[[float], object]], None]) -> None:
        try:
            work(ended.is_set, ended.wait)
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
            failures.append(failure)

    threads = [threading.Thread(target=until_ended, args=(each.run,)) for each in (ddl, faults)]
    workload.start()
    for thread in threads:
        thread.start()

    def has_enough() -> bool:
        is_killed = bool(faults.kills) or not faults.victims
        is_busy = workload.done.transactions >= plan.least_transactions and bool(ddl.ran) and is_killed
        return is_busy or bool(failures or workload.done.failures)

    try:
        # the length of a run is what it is asked for; nothing is expected to have happened by then
        ended.wait(plan.seconds)
        if plan.least_transactions:
            wait_for(f"{plan.least_transactions} transactions, a statement and a kill", has_enough, 600)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        workload.stop()
    report.transactions, report.statements, report.refused = workload.done.transactions, ddl.ran, ddl.refused
    report.kills = faults.kills
    _raise([*failures, *workload.done.failures])


def _present(shapes: dict[str, Shape]) -> set[str]:
    return {ingredient for ingredient, tables in TABLES.items() if tables.keys() <= shapes.keys()}


def _raise(failures: list[Exception]) -> None:
    for failure in failures:
        raise failure
