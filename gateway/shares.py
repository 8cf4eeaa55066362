"""What many agents use of one thing of the process, divided so that nobody can take it from the others.

`Shares` are of an amount, in bytes or places. An agent may take more while it holds less than what is free beyond what
its tenant holds. So one alone may hold a third of the whole, many of one tenant a half, and whoever comes new finds as
much as each of the others holds (the dynamic thresholds of Choudhury and Hahne, 1998, for tenants and within each). A
piece may be larger than what was free.

`Turns` are of work, some at a time, of which one tenant may have less than all, and one owner less than these: of those
that wait one tenant comes
after the other, and of a tenant one owner after the other. Both live on the event loop. Nothing is durable, and who
neither holds nor waits takes no memory.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from gateway import loop_turns
from gateway.loop_turns import Owner

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    called: asyncio.Future[None]
    #: of the event loop's
    turn: loop_turns.Turn | None


@dataclass(slots=True)
class Waiting:
    """Who waits, in turns of tenants and of each one's owners.

    Whoever is called goes on ahead of its turn on the event loop, until it waits again: it has what others wait for.
    """

    _tenants: OrderedDict[str, OrderedDict[Owner, deque[Place]]] = field(default_factory=OrderedDict)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    async def wait(self, owner: Owner, in_vain: Callable[[], None], *, is_again: bool = False) -> None:
        """Until the owner is called. `in_vain`: it was, and is cancelled before it could go on. Whoever waits again,
        since another one was faster, is the next one."""
        place = Place(asyncio.get_running_loop().create_future(), loop_turns.current())
        owners = self._tenants.setdefault(owner[0], OrderedDict())
        places = owners.setdefault(owner, deque())
        if is_again:
            places.appendleft(place)
            owners.move_to_end(owner, last=False)
            self._tenants.move_to_end(owner[0], last=False)
        else:
            places.append(place)
        try:
            await place.called
        except asyncio.CancelledError:
            if place.called.cancelled():
                self._leave(owner, place)
            else:
                in_vain()
            raise

    def tenants(self) -> Iterable[str]:
        return self._tenants

    def owners(self, tenant: str) -> Iterable[Owner]:
        return self._tenants[tenant]

    def call(self, owner: Owner) -> bool:
        """The one of it that came first goes on; before the next, others have their turn. False: nobody was there."""
        while (owners := self._tenants.get(owner[0])) is not None and (places := owners.get(owner)) is not None:
            place = places[0]
            owners.move_to_end(owner)
            self._tenants.move_to_end(owner[0])
            self._leave(owner, place)
            if not place.called.cancelled():
                with loop_turns.ahead(place.turn):
                    place.called.set_result(None)
                return True
        return False

    def _leave(self, owner: Owner, place: Place) -> None:
        owners = self._tenants.get(owner[0])
        places = None if owners is None else owners.get(owner)
        if owners is None or places is None or place not in places:
            return  # it was called just before it was cancelled
        places.remove(place)
        if not places:
            del owners[owner]
        if not owners:
            del self._tenants[owner[0]]


@dataclass(slots=True)
class Shares:
    #: of all together
    most: int
    _held: int = 0
    _of_tenant: Counter[str] = field(default_factory=Counter)
    _of_owner: Counter[Owner] = field(default_factory=Counter)
    _waiting: Waiting = field(default_factory=Waiting)

    def has_room(self, owner: Owner) -> bool:
        """Whether the owner may take a piece now."""
        return self._of_owner[owner] < self.most - self._held - self._of_tenant[owner[0]]

    async def room(self, owner: Owner) -> None:
        """Wait until the owner may take a piece; it takes it before it waits for anything else."""
        is_again = False
        while not self.has_room(owner):
            if is_again:
                self._call()  # somebody else may have room
            await self._waiting.wait(owner, self._call, is_again=is_again)
            is_again = True
        self._call()  # the next one looks when this one has taken its piece

    def change(self, owner: Owner, by: int) -> None:
        """The owner holds so much more, or less."""
        if not by:
            return
        self._held += by
        _add(self._of_tenant, owner[0], by)
        _add(self._of_owner, owner, by)
        if by < 0:
            self._call()

    def _call(self) -> None:
        """The first one that may go on. It looks again, since those before it may have taken what was free."""
        if not self._waiting:
            return
        free = self.most - self._held
        for tenant in self._waiting.tenants():
            left = free - self._of_tenant[tenant]
            if left <= 0:
                continue
            for owner in self._waiting.owners(tenant):
                if self._of_owner[owner] < left:
                    self._waiting.call(owner)
                    return


@dataclass(slots=True)
class Turns:
    #: at a time
    most: int = 1
    #: of one tenant; None: as many
    most_of_tenant: int | None = None
    most_of_owner: int | None = None
    _of_tenant: Counter[str] = field(default_factory=Counter)
    _of_owner: Counter[Owner] = field(default_factory=Counter)
    _waiting: Waiting = field(default_factory=Waiting)

    async def take(self, owner: Owner) -> None:
        """Whoever has taken a turn gives it back."""
        if self._has_turn() and self._tenant_may(owner[0]) and self._owner_may(owner):
            self._change(owner, 1)
        else:
            await self._waiting.wait(owner, partial(self.give, owner))

    def give(self, owner: Owner) -> None:
        """A turn of the owner is over; it is the next one's at once."""
        self._change(owner, -1)
        while (called := self._next()) is not None:
            if self._waiting.call(called):
                self._change(called, 1)
                return

    def _change(self, owner: Owner, by: int) -> None:
        _add(self._of_tenant, owner[0], by)
        _add(self._of_owner, owner, by)

    def _has_turn(self) -> bool:
        return self._of_tenant.total() < self.most

    def _tenant_may(self, tenant: str) -> bool:
        return self.most_of_tenant is None or self._of_tenant[tenant] < self.most_of_tenant

    def _owner_may(self, owner: Owner) -> bool:
        return self.most_of_owner is None or self._of_owner[owner] < self.most_of_owner

    def _next(self) -> Owner | None:
        if not self._has_turn():
            return None
        tenants = filter(self._tenant_may, self._waiting.tenants())
        return next((owner for each in tenants for owner in self._waiting.owners(each) if self._owner_may(owner)), None)

    @asynccontextmanager
    async def of(self, owner: Owner) -> AsyncIterator[None]:
        """Meanwhile no call for whoever has it waits for its turn on the event loop."""
        await self.take(owner)
        with loop_turns.ahead(loop_turns.current()):
            try:
                yield
            finally:
                self.give(owner)


@dataclass(frozen=True, slots=True)
class FairThreads:
    """Threads for blocking work, in turns."""

    threads: Executor
    turns: Turns

    async def start(self, owner: Owner, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Returns when a thread has it. The turn lasts as long as the work, also where nobody waits for it."""
        await self.turns.take(owner)
        loop = asyncio.get_running_loop()
        job = self.threads.submit(work)
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self.turns.give, owner))
        return asyncio.wrap_future(job)


def _add(held: Counter[T], name: T, by: int) -> None:
    held[name] += by
    if not held[name]:
        del held[name]
