"""What `menura doctor` finds, whichever part of Menura has looked: checks, each a pure function over gathered facts.

Comes in: facts, a dataclass of a part's own, in which None is what could not be asked. Goes out: a `Finding` for each
check: what was found, why it matters, and the exact command, statement or setting that mends it. Who gathers facts is
the part's own; no check asks anything. Exit codes: 0 where all is well, 1 where something is to be looked at, or could
not be checked, 2 where something is wrong that keeps data from coming or lets it be lost.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

F = TypeVar("F")

#: entry points by the name of a part, each a `Part`
GROUP = "menura.doctor"


#: mends a clock that nobody sets
SET_NTP = "timedatectl set-ntp true"


class Result(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    #: it could not be asked
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    result: Result
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    #: what was looked at, e.g. "host" or "source shop, client"
    part: str
    #: of the check, stable
    check: str
    result: Result
    found: str
    #: why it matters
    why: str
    #: what mends it; empty where nothing is to be mended
    fix: str


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    name: str
    why: str
    judge: Callable[[F], Verdict]

    def of(self, part: str, facts: F) -> Finding:
        verdict = self.judge(facts)
        return Finding(part, self.name, verdict.result, verdict.found, self.why, verdict.fix)


@dataclass(slots=True)
class Checks(Generic[F]):
    """A part's checks, in the order in which they are made."""

    all: list[Check[F]] = field(default_factory=list)

    def __call__(self, name: str, why: str) -> Callable[[Callable[[F], Verdict]], Callable[[F], Verdict]]:
        """Of a function, which judges."""

        def add(judge: Callable[[F], Verdict]) -> Callable[[F], Verdict]:
            self.all.append(Check(name, why, judge))
            return judge

        return add

    def of(self, part: str, facts: F) -> list[Finding]:
        return [check.of(part, facts) for check in self.all]

    def unasked(self, part: str, found: str) -> list[Finding]:
        """Each, where there are no facts."""
        return [Finding(part, check.name, Result.UNKNOWN, found, check.why, "") for check in self.all]


def ok(found: str) -> Verdict:
    return Verdict(Result.OK, found)


def warning(found: str, fix: str) -> Verdict:
    return Verdict(Result.WARNING, found, fix)


def failed(found: str, fix: str) -> Verdict:
    return Verdict(Result.FAILED, found, fix)


def unknown(found: str, fix: str = "") -> Verdict:
    return Verdict(Result.UNKNOWN, found, fix)


def room(found_bytes: int | None, least: int, place: str, fix: str) -> Verdict:
    """Of memory or a disk; None: it could not be asked.

    >>> room(3 << 20, 2 << 20, "free below /var", "").found
    '3 MiB are free below /var'
    """
    if found_bytes is None:
        return unknown(f"how much is {place} could not be asked")
    found = f"{found_bytes >> 20} MiB are {place}"
    return ok(found) if found_bytes >= least else warning(found, fix)


def clock(is_synchronised: bool | None) -> Verdict:
    """This host's; None: it could not be asked."""
    if is_synchronised is None:
        return unknown("whether somebody sets this host's clock is not known", "timedatectl")
    return ok("it is synchronised") if is_synchronised else warning("nobody sets this host's clock", SET_NTP)


def exit_code(findings: Iterable[Finding]) -> int:
    """
    >>> why = ("host", "clock"), ("found", "why", "fix")
    >>> [exit_code([Finding(*why[0], result, *why[1])]) for result in Result]
    [0, 1, 2, 1]
    """
    results = {finding.result for finding in findings}
    return 2 if Result.FAILED in results else 1 if results & {Result.WARNING, Result.UNKNOWN} else 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line names; empty: it does not."""

    config: str = ""
    database: str = ""
    landing: str = ""
    lake: str = ""
    api: str = ""
    storage_options: Sequence[str] = ()
    listen: Sequence[str] = ()


#: looks at what it knows of; none where the command line names nothing of it
Part = Callable[[Asked], list[Finding]]
