"""One Spark session and one OpenSearch for all of the sink's tests, and of each test a landing and a lake."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sink.ingest.cut_log_source import Limits
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_task import TaskSize
from spark_sink.running import run
from spark_sink.spark import start_session
from tests.needs import needs_setup
from tests.opensearch_node import OpenSearchNode
from tests.spark_sink.landing import Writer


@pytest.fixture(scope="package")
def session() -> Iterator[SparkSession]:
    needs_setup("Spark")
    running = start_session("local[2]")
    yield running
    running.stop()


@pytest.fixture(scope="package")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchNode]:
    """One for all tests of a worker; each has a prefix of its own."""
    running = OpenSearchNode(tmp_path_factory.mktemp("opensearch"))
    yield running
    running.kill()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "landing")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def follow(session: SparkSession, writer: Writer, lake: Path) -> Callable[..., None]:
    """Run the sink over what the log holds now, to its end."""

    def until_done(size: TaskSize | None = None, limits: Limits | None = None) -> None:
        settings = SinkSettings(
            str(writer.folder),
            str(lake),
            str(lake / "_menura" / "checkpoint"),
            available_now=True,
            size=size or TaskSize(),
            limits=limits or Limits(),
        )
        run(session, settings, threading.Event())

    return until_done
