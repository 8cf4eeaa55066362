"""How long to wait before the next try: exponential, capped, with jitter, so that a fleet does not come back as one."""

from random import Random


class Backoff:
    def __init__(self, first_seconds: float, most_seconds: float, random: Random) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._random = random
        self._failures = 0

    def next_seconds(self) -> float:
        """The wait after one more failure: between half and all of first * 2^failures, at most the cap."""
        whole = min(self._most_seconds, self._first_seconds * float(1 << min(self._failures, 30)))
        self._failures += 1
        return whole * self._random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        self._failures = 0
