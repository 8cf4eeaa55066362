import subprocess
import sys

import pytest

from tests.agent.running import environment

#: a signal while the main thread is inside `Event.wait`, with the event's lock
SIGNAL_INSIDE_WAIT = """
import os, signal, threading
from menura.signals import set_at_signal
stop = threading.Event()
set_at_signal(stop, signal.SIGTERM)
with stop._cond:
    os.kill(os.getpid(), signal.SIGTERM)
print("told" if stop.wait(200) else "not told")
"""

#: a signal that the system gives to another thread: nothing interrupts the main thread's wait
SIGNAL_ELSEWHERE = """
import signal, threading
from menura.signals import set_at_signal
stop, told = threading.Event(), threading.Event()
set_at_signal(stop, signal.SIGTERM)
def send():
    told.wait(0.5)  # the main thread waits by then; if it does not yet, the signal is as easily lost
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    told.wait()
threading.Thread(target=send, daemon=True).start()
print("told" if stop.wait(200) else "not told")
"""


@pytest.mark.parametrize("script", [SIGNAL_INSIDE_WAIT, SIGNAL_ELSEWHERE])
def test_signal_when_the_main_thread_can_not_be_interrupted_then_sets_the_event(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "told\n"
