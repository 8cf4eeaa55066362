"""How much of something may happen in a while: a bucket that fills by itself, up to a burst. Of the event loop.

`Rates` are those of names, of which those that came last are known.
"""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

#: an IPv6 host chooses the rest of its address itself
_IPV6_NETWORK_BITS = 64

Name = TypeVar("Name")


@dataclass(slots=True)
class Rate:
    per_second: float
    burst: float
    clock: Callable[[], float] = time.monotonic
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = self.burst, self.clock()

    def try_take(self, amount: float = 1) -> bool:
        """False when there is not so much now."""
        self._fill()
        if self._level < amount:
            return False
        self._level -= amount
        return True

    def put_back(self, amount: float = 1) -> None:
        """Of what was taken and not used."""
        self._level = min(self.burst, self._level + amount)

    def owe(self, amount: float) -> None:
        """Take it in any case: see `paid`."""
        self._fill()
        self._level -= amount

    async def paid(self) -> None:
        """Wait until the bucket has had what was owed."""
        while True:
            self._fill()
            if self._level >= 0:
                return
            await asyncio.sleep(-self._level / self.per_second)

    def _fill(self) -> None:
        now = self.clock()
        self._level = min(self.burst, self._level + (now - self._filled_at) * self.per_second)
        self._filled_at = now


@dataclass(slots=True)
class Rates(Generic[Name]):
    per_second: float
    burst: float
    most: int
    of: "OrderedDict[Name, Rate]" = field(default_factory=OrderedDict)

    def of_name(self, name: Name) -> Rate:
        rate = self.of.setdefault(name, Rate(self.per_second, self.burst))
        self.of.move_to_end(name)
        if len(self.of) > self.most:
            self.of.popitem(last=False)
        return rate


def network_of(address: str) -> str:
    """
    >>> network_of("192.0.2.7"), network_of("2001:db8::1:2"), network_of("::ffff:192.0.2.7"), network_of("")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7', '')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), _IPV6_NETWORK_BITS), strict=False))
