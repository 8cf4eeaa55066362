"""gRPC's wake-ups of the event loop, all of them taken at once.

Comes in: the socket by which gRPC's poller thread wakes the loop, with one byte for each thing that has happened. Goes
out: one call of gRPC's own handler, which does all that has happened. The handler takes one byte a call, so under load
bytes are left over: the loop turns once for each, with nothing to do. Some 280 of them fill the socket; then the poller
thread waits, and what happens next comes one thing a turn of the loop. So the bytes are taken out before the handler is
called. That loses nothing: what a byte stands for is in gRPC's queue before the byte is written, and the handler
empties the queue.

Nothing is durable. The handler is compiled code; it is met where it asks the loop to be called, which is when the
process makes its first object of `grpc.aio` in this loop.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: more than a socket of the kernel's usual size holds
_MOST_BYTES = 1 << 16


@contextmanager
def taken_at_once(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Inside: what gRPC asks this loop to call at a wake-up is called with the socket emptied, for as long as it is
    asked."""
    add_reader = loop.add_reader

    def add_emptying_reader(fd: object, callback: Callable[..., object], *args: object) -> None:
        if not isinstance(fd, socket.socket):
            add_reader(fd, callback, *args)  # type: ignore[arg-type]
            return

        def woken() -> None:
            _empty(fd)
            callback(*args)

        add_reader(fd, woken)

    loop.add_reader = add_emptying_reader  # type: ignore[method-assign]
    try:
        yield
    finally:
        del loop.add_reader


def _empty(wakeups: socket.socket) -> None:
    try:
        while len(wakeups.recv(_MOST_BYTES)) == _MOST_BYTES:
            pass
    except BlockingIOError:
        return  # another loop of the process has taken them
