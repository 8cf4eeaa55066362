"""Byte credit: how much the gateway lets a stream send, so that this process's memory is bounded."""

import threading
import time


class CreditCancelled(Exception):
    """The wait was ended because its stream or its task is over."""


class Credit:
    """Thread-safe. An agent may send while it holds any credit, and so overdraw by one batch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes = 0
        self._waited_ns = 0
        self._waiting = 0
        self._waiting_since_ns = 0

    @property
    def waited_us(self) -> int:
        """All waits so far, the running one included."""
        with self._changed:
            running = time.monotonic_ns() - self._waiting_since_ns if self._waiting_since_ns else 0
            return (self._waited_ns + running) // 1000

    @property
    def left_bytes(self) -> int:
        with self._changed:
            return max(0, self._bytes)

    def reset(self) -> None:
        """A new stream begins without credit."""
        with self._changed:
            self._bytes = 0

    def grant(self, size_bytes: int) -> None:
        with self._changed:
            self._bytes += size_bytes
            self._changed.notify_all()

    def spend(self, size_bytes: int) -> None:
        with self._changed:
            self._bytes -= size_bytes

    def wait(self, cancelled: threading.Event) -> None:
        """Until there is any credit; raises `CreditCancelled` (whoever sets the event calls `wake`)."""
        with self._changed:
            self._wait(cancelled)

    def take(self, size_bytes: int, cancelled: threading.Event) -> None:
        """The same and spend it, for several senders: they overdraw by one batch together."""
        with self._changed:
            self._wait(cancelled)
            self._bytes -= size_bytes

    def _wait(self, cancelled: threading.Event) -> None:
        if self._bytes > 0 and not cancelled.is_set():
            return
        if not self._waiting:
            self._waiting_since_ns = time.monotonic_ns()
        self._waiting += 1
        try:
            while self._bytes <= 0 and not cancelled.is_set():
                self._changed.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._waited_ns += time.monotonic_ns() - self._waiting_since_ns
                self._waiting_since_ns = 0
        if cancelled.is_set():
            raise CreditCancelled

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
