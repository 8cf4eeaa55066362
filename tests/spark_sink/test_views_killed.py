"""Views whose process SIGKILL ends at random moments of their turns: each is its text's rows, and so its changelog.

A seed says the tables' changes, the views' texts and the moments; a failure's name has it. The moment is a part of how
long a turn took before, so that kills fall on all of it; turns go on until two were in the midst when they were ended.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from tests.servers import ROOT
from tests.spark_sink.view_model import World
from tests.spark_sink.view_turns import views_of, waiting_of

SEEDS = 20
KILLS = 2
#: batches, of which the kills are to be within
MOST_BATCHES = 40
ANSWER_SECONDS = 300


class Turns:
    """A running process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.answer()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()

    def has_answered(self, seconds: float) -> bool:
        return bool(select([self.process.stdout], [], [], seconds)[0])

    def answer(self) -> str:
        assert self.process.stdout is not None and self.has_answered(ANSWER_SECONDS), "it does not answer"
        line = self.process.stdout.readline()
        assert line, "it has ended"
        return line

    def turn(self) -> float:
        """One whole turn, after which each view is followed; gives its seconds."""
        began_at = time.monotonic()
        self.begin()
        states = json.loads(self.answer())
        assert states and [each for each in states if each[1] != "following"] == [], states
        return time.monotonic() - began_at


@contextmanager
def running(folder: Path, seed: int) -> Iterator[Turns]:
    command = [sys.executable, "-m", "tests.spark_sink.view_turns", str(folder), str(seed)]
    environment = {**os.environ, "TMPDIR": str(temporary(folder))}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield Turns(process)
        finally:
            process.send_signal(signal.SIGKILL)


def temporary(folder: Path) -> Path:
    found = folder / "temporary"
    found.mkdir(exist_ok=True)
    return found


def check(world: World) -> None:
    """Also that no row of a changelog stands there twice, none is missing, and no folder of a killed turn is left."""
    assert list(temporary(world.folder).glob("menura-view-scratch-*")) == []
    for name, rows in world.expected().items():
        assert world.held(name) == rows, name
        assert world.replayed(name) == rows, name


@pytest.mark.kill
@pytest.mark.parametrize("seed", range(SEEDS))
def test_views_when_their_process_is_killed_at_random_moments_then_each_equals_its_text_and_its_changelog_too(
    seed: int, tmp_path: Path
) -> None:
    moments, killed = random.Random(1000 + seed), 0
    world = World(tmp_path, seed, waiting=waiting_of(seed))
    world.views = dict(views_of(seed))
    world.land(30)
    world.apply()
    turn_seconds = 0.0
    for number in range(MOST_BATCHES):
        with running(tmp_path, seed) as turns:
            turn_seconds = max(turn_seconds, turns.turn()) if number else turns.turn()
            check(world)
            if killed == KILLS:
                return
            world.land()
            world.apply()
            turns.begin()
            killed += not turns.has_answered(moments.uniform(0, turn_seconds))
    pytest.fail(f"{killed} of {MOST_BATCHES} turns were in the midst when they were ended")
