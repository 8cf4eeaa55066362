"""The dumps of a source in memory, with a ledger that refuses a hole."""

import uuid
from dataclasses import replace

from menura.landed_digest import LandedFocus
from menura.landing import LandedCut

from gateway.registry import DumpDesired, DumpPlanned, DumpsDesired, KeyRange, Problem, SourceKey


class MemoryDumps:
    def __init__(self) -> None:
        self.wanted: dict[SourceKey, DumpsDesired] = {}
        self.planned: dict[tuple[SourceKey, str], DumpPlanned] = {}
        self.failed: dict[tuple[SourceKey, str], Problem] = {}
        self.done: list[str] = []

    def desired(self, key: SourceKey) -> DumpsDesired:
        return self.wanted.get(key, DumpsDesired(0, ()))

    def want(
        self,
        key: SourceKey,
        database: str,
        table: str,
        *,
        verifies: bool = False,
        focus: LandedFocus | None = None,
        tells_anew: bool = False,
    ) -> str:
        """A new dump of the table, a verification or a repair; its UUID."""
        facts = (0, False, 0, 0, 0, 0, None, (), 1)
        order = DumpDesired(
            str(uuid.uuid4()), database, table, *facts, verifies=verifies, focus=focus, tells_anew=tells_anew
        )
        self._set(key, (*self.desired(key).dumps, order))
        return order.dump

    def end(self, key: SourceKey, dump: str) -> None:
        self._set(key, tuple(order for order in self.desired(key).dumps if order.dump != dump))

    def plan(self, key: SourceKey, dump: str, plan: DumpPlanned) -> None:
        if (key, dump) in self.planned or self._find(key, dump) is None:
            return
        self.planned[key, dump] = plan
        if plan.key:
            self._replace(key, dump, plan=plan, remaining=plan.ranges)
        else:
            self._set(key, self.desired(key).dumps)

    def fail(self, key: SourceKey, dump: str, problem: Problem) -> None:
        self.failed[key, dump] = problem
        self.end(key, dump)

    def apply(self, key: SourceKey, cut: LandedCut) -> None:
        for chunk in cut.chunks:
            order = self._find(key, chunk.dump)
            if order is None:
                continue
            assert chunk.chunk >= 1
            remaining = order.remaining
            if order.plan is not None:
                reached = {part.number: part for part in remaining}
                part = reached.pop(chunk.range)
                assert chunk.lower == part.lower, "a hole in the ledger, or a range read twice"
                if not chunk.last_of_range:
                    reached[chunk.range] = KeyRange(part.number, chunk.upper, part.upper)
                remaining = tuple(reached[number] for number in sorted(reached))
            self._replace(
                key, chunk.dump, moves=False, remaining=remaining, next_chunk=max(order.next_chunk, chunk.chunk + 1)
            )
        for event in cut.events:
            order = self._find(key, event.dump)
            if order is None:
                continue
            if event.kind in ("DUMP_STARTED", "VERIFICATION_STARTED", "REPAIR_STARTED"):
                self._replace(key, event.dump, started_gsn=order.started_gsn or event.gsn)
            elif event.kind in ("DUMPED", "VERIFIED", "REPAIRED"):
                assert not order.remaining
                self.done.append(event.dump)
                self.end(key, event.dump)

    def _find(self, key: SourceKey, dump: str) -> DumpDesired | None:
        return next((order for order in self.desired(key).dumps if order.dump == dump), None)

    def _replace(self, key: SourceKey, dump: str, *, moves: bool = True, **facts: object) -> None:
        dumps = self.desired(key).dumps
        self._set(key, tuple(replace(order, **facts) if order.dump == dump else order for order in dumps), moves)

    def _set(self, key: SourceKey, dumps: tuple[DumpDesired, ...], moves: bool = True) -> None:
        self.wanted[key] = DumpsDesired(self.desired(key).generation + moves, dumps)
