"""What holds for all tests: their order, and a server that this machine can't have skips its tests.

In CI, where everything can be installed, a missing server is a failure.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import needs, stack
from tests.servers import ServerMissing

LOG_LINES = 8

#: what a whole run has on the disk at a time, and as much again
NEEDED_BYTES = 8 << 30

# PySpark forks to start its JVM. Where gRPC has threads, as after other tests, its handlers of a fork end the child now
# and then: 18 of 300 forks beside five servers, none without the handlers. Read when gRPC is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Container images forbid Python to keep what it compiled. Then each command, agent and Spark worker that a test starts
# compiles all that it imports, which is two thirds of the time that `menura status` takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# Examples are the same in each run, and no clock judges them: the fuzzer looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


def pytest_sessionstart() -> None:
    """A full disk would fail hundreds of tests, each with another error."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise pytest.UsageError(
            f"{folder} has {free >> 20} MiB free, tests need {NEEDED_BYTES >> 20}; none was run. Delete what runs that"
            " were killed have left there (pytest-of-*, menura-*, churn-*, conversions-*), or set TMPDIR."
        )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    try:
        return (yield)
    except ServerMissing as missing:
        _skip(missing)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    try:
        return (yield)
    except ServerMissing as missing:
        _skip(missing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    needs.marked = "needs_setup" in item.keywords
    try:
        return (yield)
    finally:
        needs.marked = None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stable order: workers that take file by file end together, and share what a folder's tests have in common.

    Folders without Spark come first: they are the quick part. In each folder kills come first, then the files with the
    most tests. So what comes last is short.
    """
    for item in items:
        if isinstance(item, pytest.Function) and needs.can_reach_setup(item):
            item.add_marker(pytest.mark.needs_setup)
    with_spark = {item.path.parent for item in items if "spark" in item.keywords}
    kills = {item.path for item in items if "kill" in item.keywords}
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[bool, Path, bool, int, Path]:
        folder = item.path.parent
        return folder in with_spark, folder, item.path not in kills, -tests[item.path], item.path

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    stack.started[:] = [process for process in stack.started if process.is_running()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the last lines of each process of its stack: of a run elsewhere nothing else is left."""
    report = yield
    if report.failed:
        report.sections.extend((f"end of {process.log.name}", process.tail(LOG_LINES)) for process in stack.started)
    return report


def _skip(missing: ServerMissing) -> None:
    if os.environ.get("CI"):
        raise missing
    pytest.skip(str(missing))
