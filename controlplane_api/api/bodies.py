"""Bodies of requests, which are read whole before the request has its turn.

Comes in: requests of callers that are known and may send them. Goes out: the same, with all of their body. Nothing is
durable. A body counts from its beginning to the end of the answer. Of the places and the bytes one caller may hold a
third, one tenant a half, and whoever comes new finds some (`gateway.shares`); beyond that a request is refused. The
length is at most `guard.MAX_BODY_BYTES`, and the time in which a body must have come is the server's
(`menura.http_server`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from controlplane_api.api.guard import READS
from controlplane_api.errors import BodiesTooMany
from gateway.loop_turns import Owner
from gateway.shares import Shares

MAX_BODIES, MAX_BYTES = 600, 192 << 20


def length_of(scope: Scope) -> int:
    """Bytes of the body; the guard has seen that it is a number. No route that reads takes one."""
    return 0 if scope["method"] in READS else int(Headers(scope=scope).get("content-length", "0"))


@dataclass(frozen=True, slots=True)
class Bodies:
    _number: Shares = field(default_factory=lambda: Shares(MAX_BODIES))
    _bytes: Shares = field(default_factory=lambda: Shares(MAX_BYTES))

    def check(self, owner: Owner, length: int) -> None:
        """Raises `BodiesTooMany`. A body may be larger than what was free."""
        if length and not (self._number.has_room(owner) and self._bytes.has_room(owner)):
            raise BodiesTooMany(
                "reading a request",
                "its caller or tenant has as many bodies on their way, or as many bytes of them, as there may be",
                data="Nothing was changed.",
                remedy="Repeat it in a second.",
            )

    @contextmanager
    def held(self, owner: Owner, length: int) -> Iterator[None]:
        number = min(length, 1)
        self._number.change(owner, number)
        self._bytes.change(owner, length)
        try:
            yield
        finally:
            self._number.change(owner, -number)
            self._bytes.change(owner, -length)


async def read_whole(receive: Receive) -> Receive | None:
    """What gives all of the body at once, and then what else comes; None: the caller is gone before its end."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_whole() -> Message:
        return whole.pop() if whole else await receive()

    return receive_whole
