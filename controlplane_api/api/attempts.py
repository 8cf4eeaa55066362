"""How often an address or a token may be shown with a secret that is not good. Of the event loop.

An attempt is paid before the secret is looked at, so that many at once pay too, and given back when the secret is good.
"""

from dataclasses import dataclass, field

from controlplane_api.errors import AttemptsTooMany
from gateway.rate import Rate, Rates, network_of

PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS = 0.2, 20
PER_SECOND_OF_TOKEN, BURST_OF_TOKEN = 0.1, 10
#: those that tried last
MAX_ADDRESSES, MAX_TOKENS = 10_000, 1_000


@dataclass(slots=True)
class Attempts:
    _addresses: Rates[str] = field(
        default_factory=lambda: Rates(PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS, MAX_ADDRESSES)
    )
    _tokens: Rates[str] = field(default_factory=lambda: Rates(PER_SECOND_OF_TOKEN, BURST_OF_TOKEN, MAX_TOKENS))

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
