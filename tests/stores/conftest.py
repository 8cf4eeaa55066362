"""One object store for the tests of a worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store import S3Proxy


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    running = S3Proxy(Path(tmp_path_factory.mktemp("s3proxy")))
    yield running
    running.close()
