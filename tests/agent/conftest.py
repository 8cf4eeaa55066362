"""What tests of an agent stand between: a real server, and a gateway that the test reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
