"""Agents inside the test's process whose host has a policy, which a test replaces while they run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from agent.config import load
from agent.pipeline import Agent

END_SECONDS = 300


@contextmanager
def agent_with(configuration: Path, policy: str) -> Iterator["Host"]:
    file = configuration.parent / "policy.yaml"
    file.write_text(policy)
    entries = yaml.safe_load(configuration.read_text())
    configuration.write_text(yaml.safe_dump(entries | {"policy": str(file)}))
    stopping, is_due = threading.Event(), threading.Event()
    thread = threading.Thread(target=Agent(load(configuration)).run, args=(stopping, is_due))
    thread.start()
    try:
        yield Host(file, is_due)
    finally:
        stopping.set()
        thread.join(END_SECONDS)
        assert not thread.is_alive()


class Host:
    def __init__(self, file: Path, is_due: threading.Event) -> None:
        self._file = file
        self._is_due = is_due

    def policy(self, text: str) -> None:
        """As a SIGHUP has it read: the whole text, also where a former signal has the file read at this moment."""
        written = self._file.with_suffix(".new")
        written.write_text(text)
        written.chmod(self._file.stat().st_mode)
        written.replace(self._file)
        self._is_due.set()
