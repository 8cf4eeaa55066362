"""`python -m tests.fuzz [--events N] [--seed S] [--blind]`, `python -m tests.fuzz seeds`, `... replay FILE`.

Rounds of 250,000 mutated events, each with a seed of its own in a process of its own; the corpus that they grow and the
count of events fed so far lie in build/fuzz, so that a run goes on where the last one ended. A finding is kept in
build/fuzz/findings, the seed of its round is printed, and the run ends with 1.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import postgresql, seeds
from tests.fuzz.build import FOLDER, build, environment

ROUND_EVENTS = 250_000
FINDINGS = FOLDER / "findings"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument("command", nargs="?", choices=["run", "replay", "seeds"], default="run")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument(
        "--events", type=int, default=10_000_000, help="mutated events in all, with those of runs before"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="without coverage's guidance, to compare")
    parser.add_argument("--state", type=Path, default=FOLDER / "state", help="folder of the corpus and the count")
    arguments = parser.parse_args()
    if arguments.command == "seeds":
        seeds.make()
        postgresql.make()
        return 0
    build()
    if arguments.command == "replay":
        return subprocess.run(_worker("replay", arguments.file), env=environment(), check=False).returncode
    return fuzz(arguments.state, arguments.events, arguments.seed, blind=arguments.blind)


def fuzz(state: Path, events: int, seed: int, *, blind: bool = False, round_events: int = ROUND_EVENTS) -> int:
    """Rounds until `events` were fed in all; 0: nothing was found."""
    state.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    done = state / "rounds.jsonl"
    rounds = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    fed = sum(found["events"] for found in rounds)
    while fed < events:
        round_seed = seed * 1_000_000 + len(rounds)
        found = _round(state, round_seed, min(round_events, events - fed), blind=blind)
        if found is None:
            return 1
        rounds.append(found)
        with done.open("a") as log:
            log.write(json.dumps(found) + "\n")
        fed += found["events"]
        print(
            f"{fed} events; seed {round_seed}: {found['events'] / found['seconds']:.0f} events/s,"
            f" {found['inputs']} inputs, {found['errors']} typed errors, {found['rows']} rows,"
            f" {found['edges']} edges, corpus {found['corpus']}",
            flush=True,
        )
    return 0


def _round(state: Path, seed: int, events: int, *, blind: bool) -> dict[str, float] | None:
    """One process; None: it found something."""
    current = state / "current"
    command = _worker("run", seed, events, state / "corpus", current, *(["--blind"] if blind else []))
    ended = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=False, text=True)
    if ended.returncode == 0:
        return dict(json.loads(ended.stdout.splitlines()[-1]))
    data = current.read_bytes()
    kept = FINDINGS / f"{seed}-{int(time.time())}"
    kept.write_bytes(data[4 : 4 + int.from_bytes(data[:4], "little")])
    what = "hung" if ended.returncode == -signal.SIGPROF else f"ended with {ended.returncode}"
    print(f"seed {seed}: the worker {what}; its input is kept: python -m tests.fuzz replay {kept}", file=sys.stderr)
    return None


def _worker(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz.worker", *map(str, arguments)]


if __name__ == "__main__":
    sys.exit(main())
