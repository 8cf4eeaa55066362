"""What the gate knows of a route: its addresses, and what it needs of its caller."""

from collections.abc import Iterable
from dataclasses import dataclass
from re import Match, Pattern

from controlplane_api.identity.callers import Need


@dataclass(frozen=True, slots=True)
class Rule:
    path: Pattern[str]
    methods: frozenset[str]
    need: Need
    #: as the audit log names it
    name: str = ""
    #: a command that `writing` puts into the audit log
    audited: bool = False
    #: has turns of its own
    asks_search_service: bool = False
    #: its answers can be followed (`api.live`)
    is_live: bool = False


def matching(rules: Iterable[Rule], path: str) -> list[tuple[Rule, Match[str]]]:
    """The rules of a path, which is as undecoded as it came."""
    return [(rule, match) for rule in rules if (match := rule.path.match(path)) is not None]
