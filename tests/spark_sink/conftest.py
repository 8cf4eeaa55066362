"""One Spark session for all of the sink's tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_sink.spark import start_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    running = start_session("local[2]")
    yield running
    running.stop()
