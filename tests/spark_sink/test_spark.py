import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_sink.jars import CLASS_ARCHIVE, find_class_archive, find_jars
from spark_sink.spark import pack_code


@pytest.mark.spark
def test_session_when_a_python_process_starts_slowly_then_spark_waits_ten_minutes(session: SparkSession):
    assert session.sparkContext.getConf().get("spark.python.authenticate.socketTimeout") == "600s"
    # what Spark itself makes of it, for its workers and for the driver
    assert os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] == "600"


def where_pyspark_is(_: object) -> list[tuple[str, bool]]:
    import pyspark  # noqa: PLC0415

    return [(pyspark.__file__, "spark_sink.worker_daemon" in Path("/proc/self/cmdline").read_text())]


@pytest.mark.spark
def test_session_when_its_workers_run_then_they_have_the_drivers_pyspark_and_fork_from_what_has_imported_it(
    session: SparkSession,
):
    assert session.sparkContext.parallelize([0], 1).mapPartitions(where_pyspark_is).collect() == [
        (pyspark.__file__, True)
    ]


@pytest.mark.spark
def test_session_when_spark_classes_were_archived_then_its_java_has_mapped_them(session: SparkSession):
    archive = find_class_archive()
    assert archive is not None, "run .ci/setup jars"
    java = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()  # only once Java found that it fits


def archive(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Setup's command, in a folder that has the jars already."""
    for jar in find_jars():
        (folder / jar.name).symlink_to(jar)
    command = [sys.executable, "-m", "spark_sink.jars", str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **environment}
    )


def check_nothing_archived(done: subprocess.CompletedProcess[str], folder: Path):
    assert (done.returncode, done.stderr.count("CLASS_ARCHIVE_FAILED")) == (1, 1), done.stderr
    assert not (folder / CLASS_ARCHIVE).exists()
    assert "Delta's jars are there" in done.stderr


@pytest.mark.needs_setup
def test_class_archive_when_nothing_can_be_written_there_then_says_so_and_leaves_the_jars(tmp_path: Path):
    (tmp_path / CLASS_ARCHIVE).with_suffix(".part").joinpath("kept").mkdir(parents=True)  # no place for Java's draft
    check_nothing_archived(archive(tmp_path), tmp_path)


@pytest.mark.needs_setup
def test_class_archive_when_spark_can_not_run_then_says_why_and_leaves_the_jars(tmp_path: Path):
    settings, folder = tmp_path / "settings", tmp_path / "jars"
    settings.mkdir()
    folder.mkdir()
    (settings / "spark-defaults.conf").write_text("spark.sql.streaming.checkpointFileManagerClass no.such.Manager\n")
    done = archive(folder, SPARK_CONF_DIR=str(settings))
    check_nothing_archived(done, folder)
    assert "Spark could not read an empty landing: " in done.stderr
    assert "Traceback" not in done.stderr


def test_code_when_packed_for_executors_then_tasks_are_imported_from_it(tmp_path: Path):
    unpacked = tmp_path / "unpacked"
    for archive in pack_code(tmp_path):
        shutil.unpack_archive(archive, unpacked / archive.stem)
    script = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r})\n"
        "import menura.row_hash, menura.stores.object_store\n"
        "from spark_sink.ingest import cut_log_source, table_task\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('menura', 'spark_sink')), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(module.startswith(str(unpacked)) for module in done.stdout.split())
