"""`--in-turn WORD`: what a run without time for all tests leaves out, so that runs with other words have it.

Of the servers that a test has as parameters one, which the word and the test's file say: so the tests of a file share
it. Of the tests marked `long` or `kill` an eighth, of those marked `slow` a quarter. All other tests run, with each of
their other parameters. CI gives the commit, so everything has its turn within a few commits; `make test` runs all.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable
from typing import Any

import pytest

_SERVER = re.compile(r"(mysql|mariadb)([- ]?[0-9.]+)?")
#: parameters that are a release of a server, or an instance of one
_RELEASES = ("server", "release", "version")
#: of the tests with such a marker one in so many runs with a word
_TURNS = {"long": 8, "kill": 8, "slow": 4}


def left_out(items: Iterable[pytest.Item], word: str) -> set[pytest.Item]:
    """Those that have their turn with another word."""
    others = set[pytest.Item]()
    same: dict[Hashable, list[tuple[int, pytest.Item]]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        servers = sorted((key, server_of(key, value)) for key, value in parameters.items() if server_of(key, value))
        turns = max((_TURNS.get(marker, 1) for marker in item.keywords), default=1)
        if (_number(item.nodeid) + _number(word)) % turns:
            others.add(item)
        elif servers:
            rest = name, _without_servers(parameters)
            same.setdefault(rest, []).append((_number(f"{word} {item.path.name} {servers}"), item))
    return others | {item for those in same.values() for rank, item in those if rank != min(those, key=_rank)[0]}


def server_of(name: str, value: object) -> str:
    """The server that a parameter is, or nothing.

    >>> server_of("origin", ("mariadb", "11.8")), server_of("origin", "mysql"), server_of("release", "")
    ("('mariadb', '11.8')", "'mysql'", "''")
    >>> server_of("origin", "mysql_file"), server_of("count", 18)
    ('', '')
    """
    first = value[0] if isinstance(value, tuple) and value else value
    is_server = isinstance(first, str) and (name in _RELEASES or _SERVER.fullmatch(first))
    return repr(value) if is_server else ""


def _without_servers(parameters: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in parameters.items() if not server_of(name, value)))


def _rank(one: tuple[int, pytest.Item]) -> int:
    return one[0]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
