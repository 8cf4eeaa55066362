"""Lines of the log that agents cause: bounded in length, in what they may hold, and in number for each owner.

Comes in: a constant message and its values, and whose line it is. Goes out: the line, with signs for control
characters, unless its owner has had too many, or its owner's tenant too many bytes; then how many were left out stands
in the owner's next one. So a tenant with many hostile agents fills no disk: 350 MB a day at most.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from menura.errors import MenuraError, printable

from gateway.rate import Rate, Rates

LINES_PER_SECOND = 5
BURST_LINES = 500
#: of the values in a tenant's lines
BYTES_PER_SECOND = 4 << 10
BURST_BYTES = 8 << 20
#: of one value
MAX_VALUE_CHARS = 2_000
#: those who had a line last
MAX_OWNERS = MAX_TENANTS = 10_000


@dataclass(slots=True)
class _Owner:
    rate: Rate = field(default_factory=lambda: Rate(LINES_PER_SECOND, BURST_LINES))
    left_out: int = 0


@dataclass(slots=True)
class LogLines:
    _owners: "OrderedDict[str, _Owner]" = field(default_factory=OrderedDict)
    _tenants: Rates[str] = field(default_factory=lambda: Rates(BYTES_PER_SECOND, BURST_BYTES, MAX_TENANTS))

    def write(self, logger: logging.Logger, level: int, owner: object, message: str, *values: object) -> None:
        """`message` with a %s for each of the values; `owner`, TENANT or TENANT/AGENT: whose quotas it uses."""
        known = self._owners.setdefault(str(owner), _Owner())
        self._owners.move_to_end(str(owner))
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        told = [printable(str(value)[:MAX_VALUE_CHARS]) for value in values] if known.rate.try_take() else None
        tenant = self._tenants.of_name(str(owner).partition("/")[0])
        if told is None or not tenant.try_take(sum(len(each.encode()) for each in told)):
            known.left_out += 1
            return
        more, known.left_out = known.left_out, 0
        if more:
            message, told = f"{message} (%s lines of this owner were left out before)", [*told, str(more)]
        logger.log(level, message, *told, extra={"fields": _fields(str(owner), values)})


def _fields(owner: str, values: Iterable[object]) -> dict[str, str]:
    """Of an owner TENANT/AGENT, and the code of the error that the line is about."""
    tenant, _, agent = (printable(part[:MAX_VALUE_CHARS]) for part in owner.partition("/"))
    codes = [value.code for value in values if isinstance(value, MenuraError)]
    return ({"tenant": tenant, "agent": agent} if agent else {}) | ({"code": codes[0]} if codes else {})
