from collections.abc import Iterator

import pytest

from tests.servers import TESTED, Server, server


@pytest.fixture(scope="package", params=TESTED, ids="".join)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each of the servers, shared by this folder's tests; every test makes a log file and tables of its own."""
    flavor, version = request.param
    folder = tmp_path_factory.mktemp(flavor) / "server"
    with server(flavor, folder, release=version, max_allowed_packet="128M") as running:
        running.create_replication_user()
        running.run("CREATE DATABASE t CHARACTER SET utf8mb4")
        yield running


@pytest.fixture
def mysql(source: Server) -> Server:
    if source.flavor != "mysql":
        pytest.skip("MariaDB has no such thing")
    return source


@pytest.fixture
def mariadb(source: Server) -> Server:
    if source.flavor != "mariadb":
        pytest.skip("MySQL has no such thing")
    return source
