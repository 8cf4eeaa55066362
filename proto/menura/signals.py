"""Being told to stop: a signal sets an event.

A Python signal handler runs in the main thread, between any two of its steps. `threading.Event.set` takes the event's
lock, which the main thread holds for moments in each `wait`: a handler that calls it then waits for itself for ever.
`queue.SimpleQueue.put` is made to be called there.
"""

import signal
import threading
from queue import SimpleQueue
from types import FrameType


def set_at_signal(event: threading.Event, *numbers: signal.Signals) -> None:
    """From now on each of the signals sets `event`; to be called in the main thread."""
    arrived: SimpleQueue[int] = SimpleQueue()

    def note(number: int, frame: FrameType | None) -> None:
        arrived.put(number)

    def pass_on() -> None:
        while True:
            arrived.get()
            event.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, note)
