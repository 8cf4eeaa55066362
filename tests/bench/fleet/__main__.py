"""`python -m tests.bench.fleet [--agents 2000] [--tables 1000] [--largest 50000]`: into build/bench-fleet.json.

One gateway process, one API and one PostgreSQL on this machine, beside the simulated agents. Seconds of a wall clock
are of everything together; CPU and memory are the gateway's own. What is asked of it, one after the other:

- connect: all agents come at once and report their tables, which nobody knows yet.
- idle: nothing but heartbeats.
- command: `sync start` of one table of one agent by REST, until that agent has heard of it.
- restart: the gateway is killed and started, until all streams are back, and all tables known to be as before.
- lists: pages of the API, also of a source of which 2,000 tables are ahead, each at a position of its own.
- report beside commits: another tenant's commits, alone and while an agent reports 150,000 tables.

It ends with 1 where a figure is beyond its goal.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import httpx
from menura.v1.changes_pb2 import Ahead, Position, Replicate
from menura.v1.config_pb2 import TableName
from sqlalchemy import func, select

from controlplane_api.models import Agent, Source, SourceTable
from tests.bench.fleet.agents import DATABASE, Answer, SimulatedAgent, table_name, until
from tests.bench.fleet.installation import Installation, cpu_seconds, installation, resident_bytes
from tests.bench.report import console
from tests.gateway.scripted_agent import AgentStream, ScriptedAgent, commit_cut, cut_end
from tests.servers import ROOT
from tests.stack import http_client

TENANTS = 20
REPORTING_TABLES = 150_000
AHEAD_TABLES = 2000
IDLE_SECONDS = 30
COMMANDS = 200
CALLS = 7
COMMITS = 40
PATIENCE_SECONDS = 3600

Figures = dict[str, float]
#: by part: figures and the most that each may be
GOALS = {
    "command": {"p99_s": 1.0},
    "restart": {"streams_s": 60.0},
    "lists": {
        "page_of_100_s": 0.1,
        "page_of_1000_s": 0.1,
        "page_of_the_largest_s": 0.1,
        "text_in_the_largest_s": 0.1,
        "fleet_of_a_tenant_s": 0.1,
        "synced_s": 0.1,
        "page_of_1000_ahead_s": 0.1,
    },
    "report beside commits": {"ratio_of_medians": 2.0},
}


async def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=50_000, help="tables of the first agent")
    chosen = parser.parse_args()
    out, figures = console(), {}
    with tempfile.TemporaryDirectory(prefix="menura-fleet-") as folder, installation(Path(folder)) as installed:
        fleet = make_fleet(installed, chosen.agents, chosen.tables, chosen.largest)
        out.print(
            f"{len(fleet):,} agents, {TENANTS} tenants, {chosen.tables:,} tables each, one has {chosen.largest:,}"
        )
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(agent.run()) for agent in fleet]
            for name, part in PARTS.items():
                figures[name] = await part(installed, fleet)
                out.print(name, {key: round(value, 4) for key, value in figures[name].items()})
            for task in running:
                task.cancel()
    judged = [
        {"part": part, "figure": name, "value": figures[part][name], "goal": most, "met": figures[part][name] <= most}
        for part, goals in GOALS.items()
        for name, most in goals.items()
    ]
    for each in judged:
        out.print("met   " if each["met"] else "MISSED", each)
    target = ROOT / "build" / "bench-fleet.json"
    target.write_text(json.dumps({"figures": figures, "goals": judged}, indent=1) + "\n")
    out.print(f"written to {target.relative_to(ROOT)}")
    return 0 if all(each["met"] for each in judged) else 1


def make_fleet(installed: Installation, agents: int, tables: int, largest: int) -> list[SimulatedAgent]:
    named = [(f"tenant-{number % TENANTS}", f"agent-{number}") for number in range(agents)]
    answer, large = Answer.of(tables), Answer.of(largest)
    return [
        SimulatedAgent(installed.address, tenant, name, identity, large if number == 0 else answer)
        for number, ((tenant, name), identity) in enumerate(zip(named, installed.enrol(named), strict=True))
    ]


async def connect(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    used = Used(installed)
    back = await until("streams are open", fleet, lambda agent: agent.is_back, PATIENCE_SECONDS)
    cpu_back = used.cpu_seconds()
    known = back + await known_tables(installed, 0)
    return {
        "streams_s": back,
        "streams_cpu_s": cpu_back,
        "tables_known_s": known,
        "tables_cpu_s": used.cpu_seconds(),
        "peak_MiB": used.peak_mib(),
    }


async def known_tables(installed: Installation, since_us: int, of: str = "") -> float:
    """Seconds until a cartography of each source, or of one agent's, is recorded that came after `since_us`."""
    began = time.monotonic()
    while await asyncio.to_thread(_unknown, installed, since_us, of):
        assert time.monotonic() - began < PATIENCE_SECONDS
        await asyncio.sleep(0.5)
    return time.monotonic() - began


def _unknown(installed: Installation, since_us: int, of: str) -> int:
    old = select(func.count()).select_from(Source).where(func.coalesce(Source.cartography_at_us, 0) <= since_us)
    if of:
        old = old.join(Agent, Source.agent_id == Agent.id).where(Agent.name == of)
    with installed.database.read() as connection:
        return connection.execute(old).scalar_one()


async def idle(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    used = Used(installed)
    await asyncio.sleep(IDLE_SECONDS)
    assert all(agent.is_back for agent in fleet)
    per_agent = used.cpu_seconds() / IDLE_SECONDS / len(fleet)
    return {
        "cpu_us_a_second_and_agent": per_agent * 1e6,
        "cores": per_agent * len(fleet),
        "KiB_an_agent": resident_bytes(used.pid) / len(fleet) / 1024,
        "MiB": resident_bytes(used.pid) / 2**20,
    }


async def command(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    async with httpx.AsyncClient(base_url=installed.api_url, timeout=300) as client:
        took = [
            await _command(client, fleet[number * 7919 % len(fleet)], table_name(number // len(fleet)))
            for number in range(COMMANDS)
        ]
    return {"median_s": statistics.median(took), "p99_s": _p99(took), "most_s": max(took)}


async def _command(client: httpx.AsyncClient, agent: SimulatedAgent, table: str) -> float:
    """Seconds from the call until the agent has heard of it."""
    asked = time.monotonic()
    await _start(client, agent, table)
    await until("the command has come", [agent], lambda agent: table in agent.desired, PATIENCE_SECONDS)
    return agent.desired[table] - asked


async def _start(client: httpx.AsyncClient, agent: SimulatedAgent, *tables: str) -> None:
    body = {"tables": [{"database": DATABASE, "table": table} for table in tables], "start": "now"}
    answer = await client.post(_path(agent, "start"), json=body)
    assert answer.is_success, answer.text


async def restart(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    killed_us = time.time_ns() // 1000
    await asyncio.to_thread(installed.gateway.kill)
    await until("streams have ended", fleet, lambda agent: not agent.open, PATIENCE_SECONDS)
    began = time.monotonic()
    await asyncio.to_thread(installed.start_gateway)
    used, serves = Used(installed), time.monotonic() - began
    await until("streams are back", fleet, lambda agent: agent.is_back, PATIENCE_SECONDS)
    back, cpu_back = time.monotonic() - began, used.cpu_seconds()
    await known_tables(installed, killed_us)
    return {
        "serves_s": serves,
        "streams_s": back,
        "streams_cpu_s": cpu_back,
        "tables_known_s": time.monotonic() - began,
        "tables_cpu_s": used.cpu_seconds(),
        "peak_MiB": used.peak_mib(),
    }


async def lists(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    ahead = await _tables_ahead(installed)
    return await asyncio.to_thread(_lists, installed, fleet, ahead)


async def _tables_ahead(installed: Installation) -> SimulatedAgent:
    """One that has committed a cut in which each of its tables is ahead of its stream, at a position of its own."""
    (identity,) = await asyncio.to_thread(installed.enrol, [("quiet", "ahead")])
    reported = SimulatedAgent(installed.address, "quiet", "ahead", identity, Answer.of(AHEAD_TABLES))
    names = [TableName(database=DATABASE, table=table_name(number)) for number in range(AHEAD_TABLES)]
    await _report_and_start(installed, reported, [name.table for name in names])
    async with _scripted(installed, reported) as (stream, run):
        end = cut_end(run, 1, 1)
        for number, name in enumerate(names):
            position = Position(kind="mysql", text=f"uuid:1-{number + 2}", token=str(number + 2))
            end.ahead.append(Ahead(position=position, tables=[name]))
        await stream.send(cut_end=end)
        await stream.expect("cut_committed")
    return reported


def _lists(installed: Installation, fleet: Sequence[SimulatedAgent], ahead: SimulatedAgent) -> Figures:
    with http_client(installed.api_url) as client:

        def page(path: str) -> float:
            def call() -> None:
                answer = client.get(path)
                assert answer.is_success, answer.text

            return _median_s(call)

        large, usual = (_path(agent, "tables") for agent in (fleet[0], fleet[-1]))
        with installed.database.read() as connection:
            count = connection.execute(select(func.count()).select_from(SourceTable)).scalar_one()
        assert installed.api.running is not None
        pid, before, began = installed.api.running.pid, cpu_seconds(installed.api.running.pid), time.monotonic()
        took = {
            "page_of_100_s": page(f"{usual}?limit=100"),
            "page_of_1000_s": page(f"{usual}?limit=1000"),
            "page_of_the_largest_s": page(f"{large}?limit=100"),
            "text_in_the_largest_s": page(f"{large}?limit=100&text=49"),
            "fleet_of_a_tenant_s": page(f"/api/v1/tenants/{fleet[0].tenant}/fleet"),
            "synced_s": page(f"{usual}?limit=100&synced=true"),
            "page_of_1000_ahead_s": page(f"{_path(ahead, 'tables')}?limit=1000&synced=true"),
        }
        calls = CALLS * len(took)
        # On a busy machine a call waits longer than it works.
        used = (cpu_seconds(pid) - before) / calls
        return {"tables": count, **took, "api_cpu_s_a_call": used, "s_a_call": (time.monotonic() - began) / calls}


async def report_beside_commits(installed: Installation, fleet: Sequence[SimulatedAgent]) -> Figures:
    del fleet
    committing, reporting = await asyncio.to_thread(installed.enrol, [("quiet", "quiet"), ("loud", "loud")])
    loud = SimulatedAgent(installed.address, "loud", "loud", reporting, Answer.of(REPORTING_TABLES))
    quiet = SimulatedAgent(installed.address, "quiet", "quiet", committing, Answer.of(1))
    await _report_and_start(installed, quiet, [table_name(0)])
    async with _scripted(installed, quiet) as (stream, run):
        alone = await _commits(stream, run, 1, lambda: False)
        async with _running(loud):
            await until("the report is sent", [loud], lambda agent: agent.answered > 0, PATIENCE_SECONDS)
            beside = await _commits(stream, run, 1 + len(alone), lambda: _is_unreported(installed, loud))
    medians = statistics.median(alone), statistics.median(beside)
    return {
        "alone_median_s": medians[0],
        "alone_p99_s": _p99(alone),
        "beside_commits": len(beside),
        "beside_median_s": medians[1],
        "beside_p99_s": _p99(beside),
        "ratio_of_medians": medians[1] / medians[0],
    }


async def _report_and_start(installed: Installation, agent: SimulatedAgent, tables: Sequence[str]) -> None:
    """The agent reports its tables, their syncs are started, and it is gone again."""
    began_us = time.time_ns() // 1000
    async with _running(agent), httpx.AsyncClient(base_url=installed.api_url, timeout=300) as client:
        await until("streams are open", [agent], lambda agent: agent.is_back, PATIENCE_SECONDS)
        await known_tables(installed, began_us, of=agent.name)
        await _start(client, agent, *tables)


@asynccontextmanager
async def _running(agent: SimulatedAgent) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _scripted(installed: Installation, of: SimulatedAgent) -> AsyncIterator[tuple[AgentStream, Replicate]]:
    """The stream of changes of an agent that does what the bench says, and what the gateway has asked of it."""
    found = of.identity
    credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
    options = (("grpc.ssl_target_name_override", found.server_name),)
    async with grpc.aio.secure_channel(installed.address, credentials, options=options) as channel:
        agent = ScriptedAgent(channel, of.tenant, of.name, (of.name,))
        control = await agent.open("Control_Config")
        await control.expect("hello_ack")
        yield await agent.open_binlog(of.name)
        await control.close()


def _is_unreported(installed: Installation, reporting: SimulatedAgent) -> bool:
    assert not reporting.errors, reporting.errors
    last = select(SourceTable.id).where(SourceTable.name == table_name(REPORTING_TABLES - 1))
    with installed.database.read() as connection:
        return connection.execute(last).first() is None


async def _commits(stream: AgentStream, run: Replicate, first: int, goes_on: Callable[[], bool]) -> list[float]:
    """Seconds of commits one after the other: `COMMITS`, and more while it goes on."""
    took: list[float] = []
    cut = first
    while len(took) < COMMITS or await asyncio.to_thread(goes_on):
        began = time.monotonic()
        await commit_cut(stream, run, cut, range(cut * 10, cut * 10 + 10), table_name(0))
        took.append(time.monotonic() - began)
        cut += 1
    return took


class Used:
    """Of the gateway's process, from now on."""

    def __init__(self, installed: Installation) -> None:
        assert installed.gateway.running is not None
        self.pid = installed.gateway.running.pid
        self._before = cpu_seconds(self.pid)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid) - self._before

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _path(agent: SimulatedAgent, word: str) -> str:
    return f"/api/v1/tenants/{agent.tenant}/sources/{agent.name}/{word}"


def _median_s(call: Callable[[], None]) -> float:
    took = []
    for _ in range(CALLS):
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return statistics.median(took)


def _p99(took: Sequence[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


PARTS = {
    "connect": connect,
    "idle": idle,
    "command": command,
    "restart": restart,
    "lists": lists,
    "report beside commits": report_beside_commits,
}

if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
