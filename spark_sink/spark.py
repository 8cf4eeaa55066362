"""The Spark session of the sink: settings and nothing else.

Local by default: the driver and its workers on one machine, everything bound to loopback. With another `--master` the
cluster's own settings hold (spark-defaults.conf, `--conf`): memory, cores, addresses, shuffles. Here remains what rows
depend on. The sink's own packages, compiled modules included, travel to the executors; what they import (pyarrow,
deltalake, obstore) is the executors' own, by default under the driver's path of Python, or in a packed environment that
`spark.archives` and `spark.pyspark.python` name.
"""

import atexit
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import menura
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink.errors import QueryFailed
from spark_sink.ingest.batch_jobs import condition
from spark_sink.ingest.cut_log_source import CutLogSource
from spark_sink.ingest.masters import is_local
from spark_sink.jars import find_class_archive, find_jars, find_java
from spark_sink.spark_scratch import check_scratch

#: of this interpreter's compiled modules
EXTENSION = str(sysconfig.get_config_var("EXT_SUFFIX"))
DRIVER_MEMORY = "1g"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
#: far beyond what a machine that is merely busy needs: what takes longer has hung
SLOW_START = "600s"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # A second copy of a task would commit beside the first one.
    "spark.speculation": "false",
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
    "spark.ui.enabled": "false",
    "spark.driver.memory": DRIVER_MEMORY,
    "spark.sql.shuffle.partitions": "4",
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


def start_session(master: str = "local[*]", settings: Mapping[str, str] = NO_SETTINGS) -> SparkSession:
    """A session that knows Delta and the cut log; `settings` count more than ours.

    Raises `JavaMissing`, `JarsMissing`, `SinkSettingInvalid`.
    """
    find_java()
    jars = find_jars()
    if is_local(master):
        check_scratch(settings)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(master):  # workers must be this interpreter: it has pyarrow and deltalake
        os.environ["PYSPARK_PYTHON"] = _local_python()
    else:
        chosen_python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        os.environ["PYSPARK_PYTHON"] = chosen_python or sys.executable
    builder = SparkSession.builder.appName("menura-sink").master(master)
    chosen = {
        **_SETTINGS,
        **_DELTA,
        **({**_LOCAL, _JAVA_OPTIONS: _local_java_options()} if is_local(master) else _REMOTE),
        **settings,
        "spark.jars": ",".join([*map(str, jars), *filter(None, [settings.get("spark.jars")])]),
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as refused:
        raise QueryFailed(
            f"starting Spark on {master}",
            f"Spark refused it: {condition(refused)}",
            data="Nothing was read or written",
            remedy="Check --master and --conf; Spark's own words stand above",
        ) from refused
    if not is_local(master):
        folder = Path(tempfile.mkdtemp(prefix="menura-code-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors fetch it while the session runs
        for archive in pack_code(folder):
            session.sparkContext.addArchive(f"{archive}#{archive.stem}")
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


def pack_code(folder: Path) -> list[Path]:
    """Zips of the packages `menura` (without the wire) and `spark_sink`, each to be unpacked under its own name.

    Executors import from the unpacked folders, since compiled modules can't be imported from a zip.
    """
    archives = []
    for package in (Path(menura.__file__).parent, Path(__file__).parent):
        archive = folder / f"{package.name}.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for module in sorted(package.rglob("*")):
                name = module.relative_to(package)
                if name.parts[0] != "v1" and module.name.endswith((".py", EXTENSION)):
                    packed.write(module, name)
        archives.append(archive)
    return archives
