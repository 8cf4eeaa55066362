"""One run: a server, a whole stack beside it, all that changes for so many seconds, and the comparison at the end."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.churn.comparison import Lake, Verdict
from tests.churn.ddl import Ddl
from tests.churn.dumps import Dumps
from tests.churn.faults import Faults
from tests.churn.kind import COLD, MARKER, Kind, Shape
from tests.churn.mysql import MYSQL
from tests.churn.postgresql import POSTGRESQL
from tests.churn.processes import memory_of, told
from tests.churn.workload import Workload
from tests.live_source import LiveSource
from tests.stack import stack, wait_for

SOURCE = "churn"
ROWS = 300
KILLS = {"kill_agent": "agent", "kill_gateway": "gateway", "kill_sink": "sink"}
KINDS = (MYSQL, POSTGRESQL)
#: by name
SERVERS: dict[str, Kind] = {name: kind for kind in KINDS for name in kind.servers}
DUMPS = "dumps"
INGREDIENTS = tuple(dict.fromkeys([*(name for kind in KINDS for name in kind.tables), DUMPS, *KILLS]))
#: re-reads that a table may have in an hour: a run has more than a DBA
MOST_REREADS = 3600


@dataclass(frozen=True, slots=True)
class Plan:
    server: str
    seed: int
    seconds: float
    rate: float
    ingredients: frozenset[str]
    #: codes of stops that are no failure; None: those that agent/CONFORMANCE.md lists
    allowed: frozenset[str] | None = None
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
    #: the same of tables whose dumps somebody asked for
    ordered: list[tuple[float, str]] = field(default_factory=list)
    settled_seconds: float = 0.0
    #: dumps by their cause and how they ended
    dumps: dict[str, int] = field(default_factory=dict)
    memory: str = ""
    #: warnings and errors of the platform's processes
    told: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Verdict]:
        allowed = SERVERS[self.plan.server].codes if self.plan.allowed is None else self.plan.allowed
        return [
            verdict
            for verdict in self.verdicts
            if verdict.word == "different" or (verdict.word == "stopped" and verdict.code not in allowed)
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
    kind = SERVERS[plan.server]
    report = Report(plan)
    with kind.servers[plan.server](folder / "server") as source, stack(folder / "stack") as running:
        shapes = kind.shapes(plan.server, plan.ingredients)
        create(kind, source, shapes, plan)
        settings = kind.settings(plan.seed)
        agent = source.agent(running, "churn", SOURCE, dump={"max_rereads_per_hour": MOST_REREADS}, **settings)
        with agent:
            for table in (*shapes, MARKER):
                running.start_sync(SOURCE, source.namespace, table, "dump")
            processes = {"agent": agent, "gateway": running.gateway, "sink": running.sink, "api": running.api}
            victims = {kill: processes[name] for kill, name in KILLS.items() if kill in plan.ingredients}
            faults = Faults(victims, plan.seed)
            dumped = [running.table_path(SOURCE, source.namespace, table) for table in shapes]
            dumps = Dumps(running, dumped if DUMPS in plan.ingredients else [], plan.seed)
            with memory_of(processes) as memory:
                change(plan, source, shapes, faults, dumps, report)
                began = time.monotonic()
                lake = Lake(running, SOURCE, source, kind.codes)
                report.unsettled = lake.settle((*shapes, MARKER))
                report.settled_seconds = time.monotonic() - began
            report.verdicts = lake.verdicts(shapes)
            report.dumps, report.memory = lake.dumps(), str(memory)
        report.told = told({name: process.log for name, process in processes.items()})
    return report


def create(kind: Kind, source: LiveSource, shapes: dict[str, Shape], plan: Plan) -> None:
    """The tables, with rows that the dumps bring."""
    chosen = [name for name in kind.ingredients(plan.server) if name in plan.ingredients]
    source.run(
        f"CREATE TABLE {MARKER} ({kind.marker})",
        *(statement for name in chosen for statement in kind.before.get(name, ())),
        *(f"CREATE TABLE {name} ({shape.columns}) {shape.options}" for name, shape in shapes.items()),
        *(statement for shape in shapes.values() for statement in shape.more),
        *(statement for name in chosen for statement in kind.behind.get(name, ())),
    )
    workload = Workload(kind, source, shapes, -plan.seed, 10_000)
    workload.start()
    try:
        wait_for("the first rows", lambda: workload.done.transactions > ROWS or workload.done.failures)
    finally:
        workload.stop()
    _raise(workload.done.failures)
    add_cold_rows(kind, source, shapes)


def add_cold_rows(kind: Kind, source: LiveSource, shapes: dict[str, Shape]) -> None:
    """The rows of now once more, under keys that no writer uses."""
    with closing(kind.session(source)) as session:
        columns = session.columns(shapes)
        for table in (name for name, shape in shapes.items() if "id" in shape.key):
            names = ", ".join(kind.quoted(name) for name in columns[table])
            session.run(f"INSERT INTO {table} (id, {names}) SELECT id + {COLD}, {names} FROM {table}")


def change(
    plan: Plan, source: LiveSource, shapes: dict[str, Shape], faults: Faults, dumps: Dumps, report: Report
) -> None:
    """Everything at once, for the plan's seconds."""
    kind, ended = SERVERS[plan.server], threading.Event()
    workload = Workload(kind, source, shapes, plan.seed, plan.rate)
    altered = plan.ingredients & kind.steps.keys() & set(kind.ingredients(plan.server))
    ddl = Ddl(kind, source, sorted(altered), plan.seed)
    failures: list[Exception] = []

    def until_ended(work: Callable[[Callable[[], bool], Callable[[float], object]], None]) -> None:
        try:
            work(ended.is_set, ended.wait)
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
            failures.append(failure)

    threads = [threading.Thread(target=until_ended, args=(each.run,)) for each in (ddl, faults, dumps)]
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
    report.kills, report.ordered = faults.kills, dumps.ordered
    _raise([*failures, *workload.done.failures])


def _raise(failures: list[Exception]) -> None:
    for failure in failures:
        raise failure
