"""Which tests get the marker `needs_setup`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.servers import server


def by_name() -> object:
    return server("mysql", Path())


def by_module() -> object:
    return servers.server("mysql", Path())


def inside() -> Callable[[], object]:
    return lambda: [by_name() for _ in range(2)]


class Starting:
    @property
    def started(self) -> object:
        return by_name()


def by_class() -> object:
    return Starting().started


@pytest.fixture
def fixture() -> Iterator[None]:
    yield
    if servers.FLAVORS == ():
        by_class()


@pytest.mark.parametrize("code", [by_name, by_module, inside, by_class, Starting()])
def test_marker_when_a_parameter_can_start_a_server_then_given(request: pytest.FixtureRequest, code: object) -> None:
    assert "needs_setup" in request.node.keywords


@pytest.mark.usefixtures("fixture")
def test_marker_when_a_fixture_can_start_a_server_then_given(request: pytest.FixtureRequest) -> None:
    assert "needs_setup" in request.node.keywords


def test_server_when_it_is_started_in_a_way_that_is_not_seen_then_the_test_fails(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert "needs_setup" not in request.node.keywords
    start = vars(servers)["server"]
    with pytest.raises(AssertionError, match="this test starts a database server"), start("mysql", tmp_path):
        pass
