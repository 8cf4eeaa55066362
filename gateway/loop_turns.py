"""Whose turn it is on the event loop: tenants, and each one's agents, one after the other.

Comes in: what the loop is asked to call next, within a context that says for whom it is (`begin`; tasks that a task
begins inherit it). Goes out: the calls, in another order. asyncio calls what is ready in the order in which it became
ready, so a tenant whose thousand streams have something each is served a thousand times before the one that comes
next. Here what is ready for an agent waits in its own queue. In each pass of the loop one call is made for one tenant
after the other, of each tenant for one agent after the other, until `PASS_SECONDS` are over or nothing is left. So
whoever comes next waits for what runs, and for one call of each other tenant. Calls for one agent keep their order.
What the gateway does for all has no owner and does not wait: commits, its lease, gRPC's own work. Nor does what others
wait for (`ahead`): a task that is called to a turn of the process, and one that has it until it gives it back.

Steps of tasks are divided so, not messages: reading, parsing, answering and ending a stream alike. A step is not
interrupted, so none may be long: what is goes to a thread. Timers do not wait for turns; a task whose timer is due
sees that in its turn, behind what was ready for its agent before.

Nothing is durable. Lives on the event loop alone.
"""

import asyncio
import contextvars
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: a tenant, and its agent or its source
Owner = tuple[str, str]

#: of a pass of the loop, which then looks at its sockets and timers, and lets other threads have the interpreter
PASS_SECONDS = 0.005


@dataclass(slots=True)
class Turn:
    """For whom a task and those that it has begun work. Another owner counts from their next calls on."""

    owner: Owner
    #: things of the process that it has, or is given just now, and that others wait for
    ahead: int = 0


_TURN: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("turn", default=None)


def begin(owner: Owner) -> Turn:
    """From its next step on the running task works in turns of this owner."""
    turn = Turn(owner)
    _TURN.set(turn)
    return turn


def current() -> Turn | None:
    """Of whom this is called."""
    return _TURN.get()


@contextmanager
def ahead(turn: Turn | None) -> Iterator[None]:
    """Inside: what the loop is asked to call for it does not wait, or others would wait for its agent's calls."""
    if turn is None:
        yield
        return
    turn.ahead += 1
    try:
        yield
    finally:
        turn.ahead -= 1


@contextmanager
def taken(loop: asyncio.AbstractEventLoop, pass_seconds: float = PASS_SECONDS) -> Iterator[None]:
    """Inside: the loop's calls are made in turns."""
    turns = _OF_LOOPS.get(loop)
    if turns is None:
        turns = _OF_LOOPS[loop] = LoopTurns(loop.call_soon, loop, pass_seconds)
        loop.call_soon = turns.call_soon  # type: ignore[method-assign]
    turns.users += 1
    try:
        yield
    finally:
        turns.users -= 1
        if not turns.users:
            del loop.call_soon
            del _OF_LOOPS[loop]
            turns.end()


@dataclass(slots=True)
class LoopTurns:
    #: the loop's own
    call_next: Callable[..., asyncio.Handle]
    loop: asyncio.AbstractEventLoop
    pass_seconds: float
    #: gateways of this loop
    users: int = 0
    clock: Callable[[], float] = time.perf_counter
    _tenants: "OrderedDict[str, OrderedDict[Owner, deque[asyncio.Handle]]]" = field(default_factory=OrderedDict)
    #: the loop is to call `_pass`, or does
    _is_asked: bool = False
    _of_nobody: contextvars.Context = field(default_factory=contextvars.Context)

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """In place of the loop's own."""
        turn = _TURN.get() if context is None else context.get(_TURN)
        if turn is None or turn.ahead:
            return self.call_next(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self.loop, context)
        owner = turn.owner
        owners = self._tenants.setdefault(owner[0], OrderedDict())
        owners.setdefault(owner, deque()).append(handle)
        self._ask()
        return handle

    def end(self) -> None:
        """What is left is the loop's."""
        while (handle := self._next()) is not None:
            self.call_next(_run, handle, context=self._of_nobody)

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self.call_next(self._pass, context=self._of_nobody)

    def _pass(self) -> None:
        end = self.clock() + self.pass_seconds
        try:
            while (handle := self._next()) is not None:
                _run(handle)
                if self.clock() >= end:
                    break
        finally:
            self._is_asked = False
            if self._tenants:
                self._ask()

    def _next(self) -> asyncio.Handle | None:
        """Of the tenant and its agent that were called longest ago."""
        if not self._tenants:
            return None
        tenant, owners = next(iter(self._tenants.items()))
        owner, calls = next(iter(owners.items()))
        handle = calls.popleft()
        if calls:
            owners.move_to_end(owner)
        else:
            del owners[owner]
        if owners:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]
        return handle


_OF_LOOPS: dict[asyncio.AbstractEventLoop, LoopTurns] = {}


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()  # what a loop does with it: failures of the call are told to the loop's handler
