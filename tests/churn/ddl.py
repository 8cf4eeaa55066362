"""DDL in random order: an ingredient makes the statements of a step, from a seed and from how its tables look now."""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from tests.churn.kind import Kind, Session
from tests.live_source import LiveSource

#: of a statement that waits for the writers' locks
TRIES = 20


@dataclass
class Ddl:
    """Steps of the ingredients on one session; what it ran stands in `ran`, with the seconds since the start."""

    kind: Kind
    source: LiveSource
    ingredients: list[str]
    seed: int
    ran: list[tuple[float, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def run(self, ended: Callable[[], bool], pause: Callable[[float], object]) -> None:
        """Until `ended`, a step each second or so; a step that was begun is finished."""
        dice = random.Random(f"{self.seed} ddl")
        began = time.monotonic()
        with closing(self.kind.session(self.source)) as session:
            while self.ingredients and not ended():
                step = dice.choice(self.kind.steps[dice.choice(self.ingredients)])
                for statement in step(dice, self._columns):
                    self.ran.append((time.monotonic() - began, statement))
                    if not self._execute(session, statement):
                        break
                pause(dice.uniform(0.1, 1.5))

    def _execute(self, session: Session, statement: str) -> bool:
        """Whether the server took it; one that only met the writers' locks is tried again."""
        for left in reversed(range(TRIES)):
            try:
                session.run(statement)
            except self.kind.errors as refused:
                if self.kind.is_locked(refused) and left:
                    continue
                if self.kind.is_lost(refused):
                    raise
                self.refused.append((statement, str(refused)))
                return False
            return True
        return False

    def _columns(self, table: str) -> list[str]:
        found = self.source.run(
            "SELECT column_name FROM information_schema.columns"
            f" WHERE table_schema = '{self.source.namespace}' AND table_name = '{table}' ORDER BY ordinal_position"
        )
        return [str(name) for (name,) in found]
