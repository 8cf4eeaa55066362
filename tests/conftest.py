"""What holds for all tests: their order, and a server that this machine can't have skips its tests.

In CI, where everything can be installed, a missing server is a failure.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests import needs, stack
from tests.in_turn import left_out
from tests.servers import ServerMissing
from tests.slow_tests import slow_tests

LOG_LINES = 8

#: what a whole run has on the disk at a time, and as much again
NEEDED_BYTES = 8 << 30

# Container images forbid Python to keep what it compiled. Then each command, agent and Spark worker that a test starts
# compiles all that it imports, which is two thirds of the time that `menura status` takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# Examples are the same in each run, and no clock judges them: the fuzzer looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-turn", metavar="WORD", help="a part of the slow tests, which the word chooses")


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
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: the garbage collector looks for nothing in it.

    It took a sixth of the time of collecting, and half a second each time that it looked through all of that later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A stable order: workers that take file by file end together, and share what a folder's tests have in common.

    Folders without Spark come first, those with it last. At either end are the files that have the most tests that are
    `kill` or `long`, then those with the most tests: `BothEnds` takes from there, and what comes last is short.
    """
    for item in items:
        if isinstance(item, pytest.Function) and needs.can_reach_setup(item):
            item.add_marker(pytest.mark.needs_setup)
        if item.nodeid.partition("[")[0] in slow_tests():
            item.add_marker(pytest.mark.slow)
    if word := config.getoption("--in-turn"):
        others = left_out([item for item in items if {"needs_setup", "kill", "long", "slow"} & {*item.keywords}], word)
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=list(others))
    with_spark = {item.path.parent for item in items if "spark" in item.keywords}
    slow = Counter(item.path for item in items if {"kill", "long"} & {*item.keywords})
    tests = Counter(item.path for item in items)

    def place(path: Path) -> tuple[Path, int, int, Path]:
        return path.parent, -slow[path], -tests[path], path

    ahead = sorted((path for path in tests if path.parent not in with_spark), key=place)
    behind = sorted((path for path in tests if path.parent in with_spark), key=place, reverse=True)
    places = {path: number for number, path in enumerate((*ahead, *behind))}
    items.sort(key=lambda item: places[item.path])


class BothEnds(LoadFileScheduling):
    """Files to workers: every second worker takes the last one, and so has Spark, while the others wait for servers.

    One after the other, the tests without Spark would leave cores idle that those with it then lack.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> BothEnds | None:
    return BothEnds(config, log) if config.getvalue("dist") == "loadfile" else None


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
