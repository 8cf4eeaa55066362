"""`python -m spark_sink.class_archive`: Spark's classes, parsed and verified ahead, beside Delta's jars.

A JVM with Spark loads some fifteen thousand classes at its start, which is half of what a sink's start costs. Java
keeps them in an archive that later JVMs map into memory (class data sharing). The classes are those that a sink loads
over an empty landing. Java compares the archive with its own build and with each jar, and goes on without it where they
differ. A kill in the middle leaves a draft, which nobody reads and the next run replaces.
"""

import sys
import tempfile
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from spark_sink.errors import ClassArchiveFailed, QueryFailed, SinkError
from spark_sink.ingest.batch_jobs import condition
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.jars import CLASS_ARCHIVE, find_jars
from spark_sink.spark import LOCAL_JAVA_OPTIONS, start_session


def archive_classes() -> Path:
    """Make the archive anew; its path. Raises `SinkError`."""
    archive = find_jars()[0].with_name(CLASS_ARCHIVE)
    draft = archive.with_suffix(".part")
    _check_writable(draft)
    options = f"{LOCAL_JAVA_OPTIONS} -XX:ArchiveClassesAtExit={draft} -Xlog:cds*=error"
    session = start_session("local[1]", {"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory(prefix="menura-classes-") as scratch:
        settings = SinkSettings(f"{scratch}/landing", f"{scratch}/lake", f"{scratch}/checkpoint", available_now=True)
        try:
            Sink(session, settings, SinkStatus()).start().awaitTermination()
        except (QueryFailed, PySparkException, Py4JJavaError) as broken:
            why = broken.found if isinstance(broken, QueryFailed) else condition(broken)
            raise _failed(f"Spark could not read an empty landing: {why}", draft) from broken
        session.stop()
    exit_code = _end_java()
    if exit_code or not draft.is_file():
        word = "an unfinished" if draft.is_file() else "no"
        raise _failed(f"Java ended with {exit_code} and {word} archive at {draft}", draft)
    return draft.rename(archive)


def _check_writable(draft: Path) -> None:
    """Java tells it at its end, a minute later."""
    try:
        draft.write_bytes(b"")
        draft.unlink()
    except OSError as failure:
        raise _failed(f"{draft} can't be written: {failure.strerror}", draft) from failure


def _failed(found: str, draft: Path) -> ClassArchiveFailed:
    return ClassArchiveFailed(
        "archiving Spark's classes",
        found,
        data="Delta's jars are there; a sink runs without the archive and takes twice the CPU at its start",
        remedy=f"Check that {draft.parent} and the folder of temporary files can be written and have 300 MB free, then"
        " run this again",
    )


def _end_java() -> int:
    """Java ends once its standard input does, and writes the archive then."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


def main() -> int:
    try:
        archive_classes()
    except SinkError as failure:
        print(failure, file=sys.stderr)  # noqa: T201
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
