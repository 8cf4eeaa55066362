"""What tests of an agent stand between: a real server, and a gateway that the test reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.server_words import SERVER_WORDS
from tests.agent.gateway_double import GatewayDouble
from tests.agent.test_replication import prepare
from tests.servers import FLAVORS, Server, server


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """With the tables of `test_replication`."""
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    double = GatewayDouble()
    yield double
    double.stop()


@pytest.fixture(autouse=True)
def server_words() -> Iterator[None]:
    """What the policy of a test's agent says of a server's words is the process's: the next test's agent has none."""
    yield
    SERVER_WORDS.may_leave = True
