"""Dumps that somebody asks for at random moments, also of tables that are being dumped."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.stack import Stack

LEAST_SECONDS, MOST_SECONDS = 2.0, 15.0


@dataclass
class Dumps:
    running: Stack
    #: of tables in the API; none: no dump is asked for
    paths: Sequence[str]
    seed: int
    #: seconds since the start, and the table, with why it was refused
    ordered: list[tuple[float, str]] = field(default_factory=list)

    def run(self, ended: Callable[[], bool], pause: Callable[[float], object]) -> None:
        dice = random.Random(f"{self.seed} dumps")
        began = time.monotonic()
        while self.paths and not ended():
            path = dice.choice(self.paths)
            answer = self.running.client.post(f"{path}/dump", json={})
            assert answer.is_success or answer.is_client_error, answer.text  # one that has a dump gets no other
            refused = "" if answer.is_success else f" refused: {answer.json().get('code', answer.text)}"
            self.ordered.append((time.monotonic() - began, f"{path.rpartition('/')[2]}{refused}"))
            pause(dice.uniform(LEAST_SECONDS, MOST_SECONDS))
