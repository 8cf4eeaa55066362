"""What holds for all tests: the quick ones run first, and a server that this machine can't have skips its tests.

In CI, where everything can be installed, a missing server is a failure.
"""

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import ServerMissing

# PySpark forks to start its JVM. Where gRPC has threads, as after other tests, its handlers of a fork end the child now
# and then: 18 of 300 forks beside five servers, none without the handlers. Read when gRPC is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


# Examples are the same in each run, and no clock judges them: the fuzzer looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stable order: without Spark, with Spark, with kills."""
    items.sort(key=lambda item: ("kill" in item.keywords, "spark" in item.keywords))


def _skip(missing: ServerMissing) -> None:
    if os.environ.get("CI"):
        raise missing
    pytest.skip(str(missing))
