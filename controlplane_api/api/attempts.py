"""How often an address or a token may be shown with a secret that is not good. Of the event loop.

An attempt is paid before the secret is looked at, so that many at once pay too, and given back when the secret is good.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field

from controlplane_api.errors import AttemptsTooMany
from gateway.rate import Rate

PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS = 0.2, 20
PER_SECOND_OF_TOKEN, BURST_OF_TOKEN = 0.1, 10
#: those that tried last
MAX_ADDRESSES, MAX_TOKENS = 10_000, 1_000
#: an IPv6 host chooses the rest of its address itself
_IPV6_NETWORK_BITS = 64


@dataclass(slots=True)
class Rates:
    per_second: float
    burst: float
    most: int
    of: "OrderedDict[str, Rate]" = field(default_factory=OrderedDict)

    def of_name(self, name: str) -> Rate:
        rate = self.of.setdefault(name, Rate(self.per_second, self.burst))
        self.of.move_to_end(name)
        if len(self.of) > self.most:
            self.of.popitem(last=False)
        return rate


@dataclass(slots=True)
class Attempts:
    _addresses: Rates = field(default_factory=lambda: Rates(PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS, MAX_ADDRESSES))
    _tokens: Rates = field(default_factory=lambda: Rates(PER_SECOND_OF_TOKEN, BURST_OF_TOKEN, MAX_TOKENS))

    def pay(self, address: str, token: str = "") -> "Paid":
        """Raises `AttemptsTooMany`. `token`: its public half, if the attempt has one."""
        rates = [self._addresses.of_name(network_of(address)), *([self._tokens.of_name(token)] if token else [])]
        paid: list[Rate] = []
        for rate in rates:
            if not rate.try_take():
                Paid(paid).give_back()
                raise AttemptsTooMany(
                    "finding out who asks",
                    "there were too many attempts with what is not good",
                    data="Nothing was changed.",
                    remedy="Try again in a minute.",
                )
            paid.append(rate)
        return Paid(paid)


@dataclass(frozen=True, slots=True)
class Paid:
    rates: list[Rate]

    def give_back(self) -> None:
        for rate in self.rates:
            rate.put_back()


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
