"""Being told to stop: a signal sets an event.

Python runs a signal's handler in the main thread, between two of its steps. Two things follow. A handler must not set
the event: the main thread may hold the event's lock. And it may come late or never: the system can give the signal to
another thread, or to the main thread just before it begins to wait, and neither ends the wait. So the byte that Python
writes at once, from whichever thread was interrupted, to the descriptor of `signal.set_wakeup_fd` is what counts. A
thread reads it.
"""

import signal
import socket
import threading
from collections.abc import Mapping
from types import FrameType


def set_at_signal(event: threading.Event, *numbers: signal.Signals) -> None:
    """From now on each of the signals sets `event`; to be called in the main thread. A later call replaces this one."""
    set_at_signals(dict.fromkeys(numbers, event))


def set_at_signals(events: Mapping[signal.Signals, threading.Event]) -> None:
    """From now on each of the signals sets its event; to be called in the main thread. A later call replaces this."""
    told, arrived = socket.socketpair()
    told.setblocking(False)  # as `set_wakeup_fd` asks

    def pass_on() -> None:
        with told, arrived:
            while numbers_arrived := arrived.recv(64):
                for number in numbers_arrived:
                    if number in events:
                        events[signal.Signals(number)].set()

    def handled(number: int, frame: FrameType | None) -> None:
        """Python's part, which has nothing left to do."""

    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    for number in events:
        signal.signal(number, handled)
