"""What holds for all tests: a server that this machine can't have skips the test with the reason, except in CI."""

import os
from collections.abc import Generator

import pytest

from tests.servers import ServerMissing


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


def _skip(missing: ServerMissing) -> None:
    if os.environ.get("CI"):  # there everything can be installed, so a missing server is a fault
        raise missing
    pytest.skip(str(missing))
