"""kill -9 of the platform's processes at random moments, each started again at once.

Most kills come some seconds after the process has begun to work, which on a busy machine takes a while (a gateway
waits for the lease of the killed one); the others may meet it while it starts. Without that a process that is killed
again and again would never have been at work.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.stack import Process

#: by ingredient, seconds that a process works before it is killed, and what its log says once it does
VICTIMS = {
    "kill_agent": (1.0, 15.0, "replication starts"),
    "kill_gateway": (2.0, 20.0, "run begins"),
    "kill_sink": (5.0, 25.0, "batch applied"),
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
        awaits = {name: dice.random() >= UNAWAITED for name in sorted(self.victims)}
        due = {name: self._gap(dice, name) for name in awaits if not awaits[name]}
        read = dict.fromkeys(awaits, 0)
        while awaits and not ended():
            now = time.monotonic() - began
            for name in sorted(awaits.keys() - due.keys()):
                if VICTIMS[name][2] in self.victims[name].log.read_text(errors="replace")[read[name] :]:
                    due[name] = now + self._gap(dice, name)
            for name in sorted(name for name in due if due[name] <= now):
                process = self.victims[name]
                self.kills.append((time.monotonic() - began, name))
                process.kill()
                read[name] = len(process.log.read_text(errors="replace"))
                process.start()
                awaits[name] = dice.random() >= UNAWAITED
                del due[name]
                if not awaits[name]:
                    due[name] = time.monotonic() - began + self._gap(dice, name)
            pause(LOOK_SECONDS)

    def _gap(self, dice: random.Random, name: str) -> float:
        least, most, _ = VICTIMS[name]
        return dice.uniform(least, most)
