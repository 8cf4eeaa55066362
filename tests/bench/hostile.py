"""`python -m tests.bench.hostile [ATTACK ...] [--seconds 20] [--alone 10]`: beside hostile agents.

Each attack has a gateway process and a process with a thousand hostile streams of one tenant (`tests.gateway.attacks`).
An honest agent of another tenant sends one heartbeat after the other, and one cut of ten rows after the other, each as
soon as the one before is acknowledged and a moment has passed: first alone, which is the peer, then from the attack's
first stream on. Measured are the seconds from sending to the acknowledgement, at the agent, by a clock. All share one
machine. Into build/bench-hostile.json; it ends with 1 where a goal is missed.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from menura.v1.changes_pb2 import Replicate
from menura.v1.config_pb2 import Heartbeat, SourceStatus
from rich.table import Table as Printed

from tests.bench.report import console, write_figures
from tests.gateway.attacks import ATTACKS, HOSTILE_STREAMS
from tests.gateway.gateway_process import Process, gateway_process, memory_bytes
from tests.gateway.scripted_agent import ANSWER_SECONDS, OPTIONS, AgentStream, commit_cut, scripted_agent
from tests.servers import ROOT

#: of a heartbeat and of a commit
MOST_SECONDS = 1.0
MOST_MIB = 512
#: between an acknowledgement and what is sent next
PAUSE_SECONDS = 0.02
#: until an attack of the bench has its first streams
BEGIN_SECONDS = 60
PERCENTILES = ("p50", "p99", "max")


@dataclass(frozen=True, slots=True)
class Figure:
    case: str
    ours: float
    peer: float
    ratio: float
    goal: float
    met: bool


@dataclass(slots=True)
class Took:
    """Seconds of what the honest agent has sent."""

    heartbeats: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    attack: str
    alone: Took
    attacked: Took
    idle_mib: float
    most_mib: float
    #: streams and messages of the attack
    did: dict[str, int]

    def figures(self) -> list[Figure]:
        seconds = [
            self._seconds(f"{self.attack}: {what} {word}", of(self.attacked), of(self.alone), word)
            for what, of in (("heartbeat", lambda took: took.heartbeats), ("commit", lambda took: took.commits))
            for word in PERCENTILES
        ]
        memory = self.most_mib, self.idle_mib, self.most_mib / self.idle_mib, MOST_MIB, self.most_mib <= MOST_MIB
        return [*seconds, Figure(f"{self.attack}: MiB", *memory)]

    @staticmethod
    def _seconds(case: str, attacked: list[float], alone: list[float], word: str) -> Figure:
        ours, peer = percentile(attacked, word), percentile(alone, word)
        return Figure(case, ours, peer, ours / peer, MOST_SECONDS, ours <= MOST_SECONDS)


def percentile(took: list[float], word: str) -> float:
    """
    >>> [percentile([0.3, 0.1, 0.2], word) for word in PERCENTILES]
    [0.2, 0.3, 0.3]
    """
    part = {"p50": 0.5, "p99": 0.99, "max": 1.0}[word]
    return sorted(took)[min(int(len(took) * part), len(took) - 1)]


async def measure(attack: str, address: str, process: Process, alone_seconds: float, seconds: float) -> Measured:
    alone, attacked = Took(), Took()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), ANSWER_SECONDS)
    async with scripted_agent(address, "shop", tenant="globex") as honest:
        stream, run = await honest.open_binlog("shop")
        beats = await honest.open("Control_Heartbeat")
        await beats.expect("hello_ack")
        cuts = itertools.count(1)

        async def follow(took: Took, until: Callable[[], bool]) -> None:
            await asyncio.gather(
                _one_after_the_other(took.heartbeats, until, lambda: _heartbeat(beats)),
                _one_after_the_other(took.commits, until, lambda: _commit(stream, run, next(cuts))),
            )

        await follow(Took(), _after(1.0))  # what is first takes longer
        await follow(alone, _after(alone_seconds))
        idle_mib = memory_bytes(process, "VmRSS") / 2**20
        async with _attacking(attack, address) as did:
            await follow(attacked, _after(seconds))
        return Measured(attack, alone, attacked, idle_mib, memory_bytes(process, "VmHWM") / 2**20, did)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def _one_after_the_other(
    took: list[float], until: Callable[[], bool], send: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    while not until():
        began = time.perf_counter()
        await send()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE_SECONDS)


async def _heartbeat(beats: AgentStream) -> None:
    await beats.send(heartbeat=Heartbeat(sources=[SourceStatus(source="shop")]))
    await beats.expect("heartbeat_ack")


async def _commit(stream: AgentStream, run: Replicate, cut: int) -> None:
    await commit_cut(stream, run, cut, range(cut * 10, cut * 10 + 10))


@asynccontextmanager
async def _attacking(attack: str, address: str) -> AsyncIterator[dict[str, int]]:
    """From when the attack begins; what it has done is there at the end."""
    did: dict[str, int] = {}
    command = (sys.executable, "-m", "tests.gateway.attacks", attack, address)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BEGIN_SECONDS):
            assert await process.stdout.readline() == b"begins\n", f"the attack {attack} has ended"
        yield did
        assert process.returncode is None, f"the attack {attack} has ended"
    finally:
        process.terminate()
        said = await process.stdout.readline()
        await process.wait()
    did.update(json.loads(said))


def show(measured: list[Measured]) -> Printed:
    printed = Printed(title="an honest agent beside a thousand hostile streams of another tenant, milliseconds")
    printed.add_column("attack")
    for heading in ("heartbeat p50", "p99", "max", "alone max", "commit p50", "p99", "max", "alone max", "MiB", "did"):
        printed.add_column(heading, justify="right")
    for each in measured:
        row = []
        for attacked, alone in (
            (each.attacked.heartbeats, each.alone.heartbeats),
            (each.attacked.commits, each.alone.commits),
        ):
            row += [f"{percentile(attacked, word) * 1e3:,.0f}" for word in PERCENTILES]
            row.append(f"{percentile(alone, 'max') * 1e3:,.0f}")
        did = " ".join(f"{count:,} {what}" for what, count in each.did.items())
        printed.add_row(each.attack, *row, f"{each.most_mib:.0f}", did)
    return printed


def main() -> int:
    attacks = [*HOSTILE_STREAMS, *ATTACKS]
    parser = argparse.ArgumentParser(prog="tests.bench.hostile", description=__doc__)
    parser.add_argument(
        "attacks",
        nargs="*",
        metavar="ATTACK",
        help=f"some of {', '.join(attacks)}; the first {len(HOSTILE_STREAMS)}, on a thousand streams each, unless told",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each attack")
    parser.add_argument("--alone", type=float, default=10.0, help="seconds before it")
    chosen = parser.parse_args()
    out, measured = console(), []
    for attack in chosen.attacks or HOSTILE_STREAMS:
        with (
            tempfile.TemporaryDirectory(prefix="menura-bench-") as folder,
            Path(folder, "gateway.log").open("wb") as log,
            gateway_process(Path(folder), log) as (address, process),
        ):
            measured.append(asyncio.run(measure(attack, address, process, chosen.alone, chosen.seconds)))
        out.print(attack, {each.case.partition(": ")[2]: round(each.ours, 3) for each in measured[-1].figures()})
    out.print(show(measured))
    figures = [figure for each in measured for figure in each.figures()]
    for figure in figures:
        if not figure.met:
            out.print(f"MISSED {figure.case}: {figure.ours:.3f}, goal {figure.goal:g}")
    write_figures("bench-hostile.json", figures, out)
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
