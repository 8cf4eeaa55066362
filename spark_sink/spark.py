"""The Spark session of the sink: settings and nothing else.

Local by default: the driver and its workers on one machine, everything bound to loopback. With another
`--master` the address is Spark's own affair, and the two pure packages travel to the executors as a zip
(pyarrow and deltalake have to be installed there).
"""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import menura
from pyspark.sql import SparkSession

from spark_sink.ingest.cut_log_source import CutLogSource
from spark_sink.jars import find_class_archive, find_jars, find_java

DRIVER_MEMORY = "1g"
#: far beyond what a machine that is merely busy needs: what takes longer has hung
SLOW_START = "600s"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": DRIVER_MEMORY,
    # A second copy of a task would commit beside the first one.
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Its default, INT96, has no statistics, and delta-rs reads it as nanoseconds, which end in 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.worker.reuse": "true",
    # How long Spark waits for a Python process that it talks to over a socket, 15 s by default: the fork of a worker,
    # its imports and the way of a result to the driver. Beyond it a batch fails, and a starved machine needs longer.
    "spark.python.authenticate.socketTimeout": SLOW_START,
    "spark.sql.streaming.stopTimeout": "8s",
    # A kill in the middle of the first offset leaves a file beside it, and Spark then starts no query there, ever. The
    # check is for queries that keep state; this one reads the log from its begin and skips what its tables have.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
}
_WORKER_PYTHON = Path(__file__).with_name("worker_python")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").as_uri()
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Driver and executor are one process here: a heartbeat that is late says that the machine is busy.
    "spark.network.timeout": SLOW_START,
    "spark.python.daemon.module": "spark_sink.worker_daemon",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# The JVM plans; the rows are delta-rs's. Without its second compiler a start costs half of the CPU.
LOCAL_JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG_SETTINGS}"
_REMOTE = {"spark.log.level": "ERROR"}


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def start_session(master: str = "local[*]", **settings: str) -> SparkSession:
    """A session that knows Delta and the cut log; `settings` have '_' for '.'. Raises `JavaMissing`, `JarsMissing`."""
    find_java()
    jars = find_jars()
    # Workers must be this interpreter: it has pyarrow and deltalake.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = _local_python() if is_local(master) else sys.executable
    builder = SparkSession.builder.appName("menura-sink").master(master)
    chosen = {
        **_SETTINGS,
        **_DELTA,
        **({**_LOCAL, _JAVA_OPTIONS: _local_java_options()} if is_local(master) else _REMOTE),
        "spark.jars": ",".join(str(jar) for jar in jars),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if not is_local(master):
        folder = Path(tempfile.mkdtemp(prefix="menura-code-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors fetch it while the session runs
        session.sparkContext.addPyFile(str(pack_code(folder)))
    session.dataSource.register(CutLogSource)
    return session


def _local_python() -> str:
    """The interpreter of Spark's Python processes: `worker_python`, unless it was installed as a plain file."""
    if not os.access(_WORKER_PYTHON, os.X_OK):
        return sys.executable
    os.environ["MENURA_DRIVER_PYTHON"] = sys.executable
    os.environ["MENURA_DRIVER_PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    return str(_WORKER_PYTHON)


def _local_java_options() -> str:
    """With the class archive where there is one; what does not fit this Java or these jars, Java leaves alone."""
    archive = find_class_archive()
    return f"{LOCAL_JAVA_OPTIONS} -XX:SharedArchiveFile={archive}" if archive else LOCAL_JAVA_OPTIONS


def pack_code(folder: Path) -> Path:
    """A zip of `menura` (without the wire) and `spark_sink`, as executors import it."""
    archive = folder / "menura_sink.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package, modules in ((Path(menura.__file__).parent, "*.py"), (Path(__file__).parent, "**/*.py")):
            for module in sorted(package.glob(modules)):
                packed.write(module, module.relative_to(package.parent))
    return archive
