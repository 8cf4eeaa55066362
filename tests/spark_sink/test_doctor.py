"""The sink's part of `menura doctor`, without Spark: its checks over facts, and its command."""

import json
from pathlib import Path

import pytest

from spark_sink.doctor import SinkFacts, checks
from tests.controlplane_api.commands import menura
from tests.doctoring import Broken, assert_mended_by, assert_well

WELL = SinkFacts(
    java_error="", java_fix="", java=17, java_home="/usr/lib/jvm/17", jars_error="", jars_fix="",
    has_class_archive=True, spark="4.2.1", deltalake="1.6.6", python="/usr/bin/python3", pyspark_python="",
    memory_bytes=8 << 30, scratch="/tmp", scratch_bytes=1 << 40, lake="/lake", landing="/landing",
)  # fmt: skip
BROKEN: Broken = {
    "java": ({"java_error": "no java in PATH", "java_fix": "Install a Java 17 runtime"}, "Java 17"),
    "java-version": ({"java": 11}, "openjdk-17-jre-headless"),
    "java-home": ({"java_error": "no java", "java_fix": "x", "java_home": "/gone"}, "unset JAVA_HOME"),
    "jars": ({"jars_error": "not there", "jars_fix": "python -m spark_sink.jars .jars"}, "spark_sink.jars"),
    "class-archive": ({"has_class_archive": False}, "python -m spark_sink.jars .jars"),
    "spark-version": ({"spark": "4.3.0"}, "pip install 'menura[spark]'"),
    "delta-version": ({"deltalake": ""}, "pip install 'menura[spark]'"),
    "worker-python": ({"pyspark_python": "/opt/python"}, "unset PYSPARK_PYTHON"),
    "memory": ({"memory_bytes": 1 << 30}, "3 GiB"),
    "scratch-disk": ({"scratch_bytes": 1}, "SPARK_LOCAL_DIRS"),
    "lake-apart": ({"lake": "/landing/lake"}, "a folder of its own"),
}


def test_checks_when_all_is_well_then_each_is_ok_and_each_has_a_case_where_it_is_not():
    assert_well(checks, WELL, BROKEN)


@pytest.mark.parametrize("check", BROKEN)
def test_check_when_something_is_wrong_then_says_so_with_what_mends_it(check: str):
    assert_mended_by(checks, WELL, check, BROKEN)


def test_command_when_java_and_jars_are_not_there_then_fails_with_what_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MENURA_JARS", str(tmp_path))
    done = menura("doctor", "--lake", str(tmp_path / "lake"), "--output", "json", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert [found[check]["result"] for check in ("java", "java-home", "jars")] == ["failed"] * 3
    assert found["jars"]["fix"].startswith("Run: python -m spark_sink.jars")
    assert found["put-if-absent"]["result"] == "ok"
    assert "lake-apart" not in found, "no landing was named"
