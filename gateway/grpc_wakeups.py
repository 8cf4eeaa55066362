"""gRPC's wake-ups of the event loop: all that wait are done in one turn of it.

Comes in: the socket by which gRPC's poller thread wakes the loop, with one byte for each thing that has happened. Goes
out: as many calls of gRPC's own handler as bytes wait. The handler takes one byte a call, so under load bytes are left
over: the loop turns once for each. Some 280 of them fill the socket; then the poller thread waits, and what happens
next comes one thing a turn of the loop. Here a turn has a call for each byte that waits. The handler takes its bytes
itself, as it does in a loop of its own; so nothing depends on what it does in a call.

Nothing is durable. The handler is compiled code; it is met where it asks the loop to be called, which is when the
process makes its first object of `grpc.aio` in this loop.
"""

import asyncio
import logging
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

#: of the handler, in one turn of the loop; more than a socket of the kernel's usual size holds bytes
MOST_CALLS = 512
#: whose handler was met
_MET: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()


@contextmanager
def taken_at_once(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Inside: what gRPC asks this loop to call at a wake-up is called for all that wait, for as long as it is asked."""
    add_reader = loop.add_reader

    def add_repeating_reader(fd: object, callback: Callable[..., object], *args: object) -> None:
        if not isinstance(fd, socket.socket):
            add_reader(fd, callback, *args)  # type: ignore[arg-type]
            return

        def woken() -> None:
            for _ in range(max(1, _waiting(fd))):
                callback(*args)

        add_reader(fd, woken)
        _MET.add(loop)

    loop.add_reader = add_repeating_reader  # type: ignore[method-assign]
    try:
        yield
    finally:
        del loop.add_reader
    if loop not in _MET:
        logger.warning(
            "gRPC wakes the event loop in a way that this gateway does not know: under load each wake-up takes a turn"
            " of its own, and all agents wait longer. Nothing is lost. Install the version of grpcio that the gateway"
            " is locked to, and make no object of grpc.aio in its loop before it"
        )


def _waiting(wakeups: socket.socket) -> int:
    """How many wake-ups, of at most `MOST_CALLS`; they stay where they are."""
    try:
        return len(wakeups.recv(MOST_CALLS, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0  # another loop of the process has taken them
