"""The sink's part of `menura doctor`: Java, Spark, its jars, and the lake's store. `checks` are pure; `gather` asks."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from menura.doctor import Asked, Checks, Finding, Verdict, failed, ok, room, unknown, warning
from menura.host_facts import available_memory_bytes, free_bytes
from menura.stores import examination
from menura.stores.address import absolute
from menura.stores.options import parse
from menura.stores.store import StoreUnusable

from spark_sink.errors import SinkError, SinkSettingInvalid
from spark_sink.jars import CLASS_ARCHIVE, find_class_archive, find_jars, find_java
from spark_sink.spark_scratch import scratch_folders

checks = Checks["SinkFacts"]()

JAVA = 17
SPARK = "4.2"
LEAST_MEMORY_BYTES = 3 << 30
LEAST_SCRATCH_BYTES = 2 << 30
JAVA_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFacts:
    """None: could not be asked."""

    #: why it is not found, and what mends that; empty: it is
    java_error: str
    java_fix: str
    #: the first number of its version
    java: int | None
    java_home: str
    jars_error: str
    jars_fix: str
    has_class_archive: bool
    #: of the packages; empty: not installed
    spark: str
    deltalake: str
    #: of this process's Python, which Spark's workers are
    python: str
    pyspark_python: str
    memory_bytes: int | None
    scratch: str
    scratch_bytes: int | None
    #: the lake's folder is the landing's, or one is in the other
    lake: str
    landing: str


@checks("java", "Spark runs in a Java runtime.")
def java(facts: SinkFacts) -> Verdict:
    return failed(facts.java_error, facts.java_fix) if facts.java_error else ok("there is one")


@checks("java-version", "Spark runs with Java 17; with older ones it does not start, and newer ones were not tried.")
def java_version(facts: SinkFacts) -> Verdict:
    if facts.java is None:
        return unknown("its version is not known")
    if facts.java == JAVA:
        return ok(f"Java {facts.java}")
    judge = failed if facts.java < JAVA else warning
    return judge(f"Java {facts.java}", "apt-get install openjdk-17-jre-headless, and point JAVA_HOME at it")


@checks("java-home", "Spark starts the Java of JAVA_HOME, whatever PATH has.")
def java_home(facts: SinkFacts) -> Verdict:
    if not facts.java_home:
        return ok("JAVA_HOME is not set: that of PATH counts")
    if facts.java_error:
        return failed(f"JAVA_HOME is {facts.java_home}, where there is none", "unset JAVA_HOME, or correct it")
    return ok(f"JAVA_HOME is {facts.java_home}")


@checks("jars", "Without Delta's jars Spark knows no Delta tables.")
def jars(facts: SinkFacts) -> Verdict:
    return failed(facts.jars_error, facts.jars_fix) if facts.jars_error else ok("Delta's jars are there")


@checks("class-archive", "Without Spark's class archive each start takes seconds more.")
def class_archive(facts: SinkFacts) -> Verdict:
    if facts.jars_error or facts.has_class_archive:
        return unknown("it lies beside the jars") if facts.jars_error else ok(f"{CLASS_ARCHIVE} is there")
    return warning(f"there is no {CLASS_ARCHIVE}", "python -m spark_sink.jars .jars")


@checks("spark-version", "The jars are for one version of Spark.")
def spark_version(facts: SinkFacts) -> Verdict:
    if facts.spark.startswith(f"{SPARK}."):
        return ok(f"pyspark {facts.spark}")
    return failed(f"pyspark {facts.spark or 'is not installed'}", "pip install 'menura[spark]'")


@checks("delta-version", "The tasks write Delta tables with it.")
def delta_version(facts: SinkFacts) -> Verdict:
    if facts.deltalake:
        return ok(f"deltalake {facts.deltalake}")
    return failed("deltalake is not installed", "pip install 'menura[spark]'")


@checks("worker-python", "Workers of another Python lack the packages, and batches fail.")
def worker_python(facts: SinkFacts) -> Verdict:
    if facts.pyspark_python in ("", facts.python):
        return ok("workers are this Python")
    return warning(f"PYSPARK_PYTHON is {facts.pyspark_python}", "unset PYSPARK_PYTHON, unless Spark is a cluster")


@checks("memory", "A driver for which there is no memory is killed, and begins its batch again each time.")
def memory(facts: SinkFacts) -> Verdict:
    fix = "Give the host 3 GiB for the sink"
    return room(facts.memory_bytes, LEAST_MEMORY_BYTES, "available of the host's memory", fix)


@checks("scratch-disk", "Spark keeps what it sorts there.")
def scratch_disk(facts: SinkFacts) -> Verdict:
    fix = "export SPARK_LOCAL_DIRS=FOLDER, on a disk with 2 GiB free"
    return room(facts.scratch_bytes, LEAST_SCRATCH_BYTES, f"free below {facts.scratch}", fix)


@checks("lake-apart", "What cleans up a landing would remove the lake's files, and the other way round.")
def lake_apart(facts: SinkFacts) -> Verdict:
    if not facts.landing:
        return unknown("no landing was named", "menura doctor --landing URL --lake URL")
    inside = any(
        f"{one.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")
        for one, other in ((facts.lake, facts.landing), (facts.landing, facts.lake))
    )
    if not inside:
        return ok("landing and lake lie apart")
    return failed(f"lake {facts.lake} and landing {facts.landing} are one place", "Give --lake a folder of its own")


def examine(asked: Asked) -> list[Finding]:
    """Raises `SinkSettingInvalid`."""
    if not asked.lake:
        return []
    try:
        options = parse(asked.storage_options)
    except StoreUnusable as wrong:
        raise SinkSettingInvalid("reading --storage-option", str(wrong), remedy="Give KEY=VALUE") from wrong
    found = [each for each in checks.of("sink", gather(asked)) if asked.landing or each.check != "lake-apart"]
    return found + examination.examine("lake", asked.lake, options)


def gather(asked: Asked) -> SinkFacts:
    java_error, java_fix, found = "", "", ""
    try:
        found = find_java()
    except SinkError as missing:
        java_error, java_fix = missing.found, missing.remedy
    jars_error, jars_fix, archive = "", "", None
    try:
        find_jars()
        archive = find_class_archive()
    except SinkError as missing:
        jars_error, jars_fix = missing.found, missing.remedy
    scratch = scratch_folders({})[0]
    return SinkFacts(
        java_error=java_error,
        java_fix=java_fix,
        java=_java_number(found) if found else None,
        java_home=os.environ.get("JAVA_HOME", ""),
        jars_error=jars_error,
        jars_fix=jars_fix,
        has_class_archive=archive is not None,
        spark=_version("pyspark"),
        deltalake=_version("deltalake"),
        python=shutil.which("python3") or "",
        pyspark_python=os.environ.get("PYSPARK_PYTHON", ""),
        memory_bytes=available_memory_bytes(),
        scratch=scratch,
        scratch_bytes=free_bytes(Path(scratch)),
        lake=absolute(asked.lake),
        landing=absolute(asked.landing) if asked.landing else "",
    )


def _java_number(program: str) -> int | None:
    """The first number of its version; what it prints is e.g. `openjdk version "17.0.12" 2024-07-16`."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return java_number(said.stderr + said.stdout)


def java_number(said: str) -> int | None:
    """
    >>> java_number('openjdk version "17.0.12" 2024-07-16'), java_number('java version "1.8.0_392"'), java_number("")
    (17, 8, None)
    """
    match = re.search(r'version "(?:1\.)?([0-9]+)', said)
    return int(match[1]) if match else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
