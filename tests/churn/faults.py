"""kill -9 of the platform's processes at random moments, each started again at once.

Most kills wait until the process has worked since its start, which on a busy machine takes a while; the others may meet
it while it starts. Without that a process that is killed again and again would never have been at work.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.stack import Process

#: by ingredient, seconds between two kills of one process, and what its log says once it works
VICTIMS = {
    "kill_agent": (3.0, 15.0, "replication starts"),
    "kill_gateway": (8.0, 30.0, "run begins"),
    "kill_sink": (12.0, 45.0, "batch applied"),
}
#: of kills that wait for no work
UNAWAITED = 0.25
LOOK_SECONDS = 0.5


@dataclass
class Faults:
    #: by ingredient
    victims: dict[str, Process]
    seed: int
    #: seconds since the start, and whom
    kills: list[tuple[float, str]] = field(default_factory=list)

    def run(self, ended: Callable[[], bool], pause: Callable[[float], object]) -> None:
        dice = random.Random(f"{self.seed} faults")
        began = time.monotonic()
        due = {name: self._gap(dice, name) for name in sorted(self.victims)}
        awaits = {name: dice.random() >= UNAWAITED for name in due}
        read = dict.fromkeys(due, 0)
        while due and not ended():
            now = time.monotonic() - began
            for name in [name for name in due if due[name] <= now]:
                process, word = self.victims[name], VICTIMS[name][2]
                if awaits[name] and word not in process.log.read_text(errors="replace")[read[name] :]:
                    continue
                self.kills.append((time.monotonic() - began, name))
                process.kill()
                read[name] = len(process.log.read_text(errors="replace"))
                process.start()
                due[name] = time.monotonic() - began + self._gap(dice, name)
                awaits[name] = dice.random() >= UNAWAITED
            pause(LOOK_SECONDS)

    def _gap(self, dice: random.Random, name: str) -> float:
        least, most, _ = VICTIMS[name]
        return dice.uniform(least, most)
