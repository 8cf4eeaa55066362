import subprocess
import sys
import threading

import pytest

from agent.runtime.ending import end_within
from tests.agent.running import environment

#: a thread that waits for ever and that the interpreter would wait for, and an end that waits for it
NEVER_ENDING = """
import logging, threading
from agent.runtime import logs
from agent.runtime.ending import end_within, leave
logs.start("info")
waiting = threading.Thread(target=threading.Event().wait, name="never")
waiting.start()
leave(0 if end_within(0.1, waiting.join) else 1)
"""


def test_process_when_a_part_does_not_end_leaves_all_the_same_and_its_log_says_where_each_thread_was() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEVER_ENDING],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "some parts have not ended in time" in done.stderr
    assert "never:" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_end_when_it_returns_in_time_is_told() -> None:
    ended = threading.Event()
    assert end_within(300, ended.set)
    assert ended.is_set()


def test_end_when_it_raises_raises_in_the_caller() -> None:
    def end() -> None:
        raise LookupError("a part")

    with pytest.raises(LookupError, match="a part"):
        end_within(300, end)
