import subprocess
import sys

from tests.agent.running import environment

#: a signal while the main thread is inside `Event.wait`, with the event's lock
SIGNAL_INSIDE_WAIT = """
import os, signal, threading
from menura.signals import set_at_signal
stop = threading.Event()
set_at_signal(stop, signal.SIGTERM)
with stop._cond:
    os.kill(os.getpid(), signal.SIGTERM)
print("told" if stop.wait(20) else "not told")
"""


def test_signal_when_the_main_thread_holds_the_lock_of_the_event_then_sets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_INSIDE_WAIT],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "told\n"
