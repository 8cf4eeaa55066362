"""Spark is not started without a folder that it can use."""

from pathlib import Path

import pytest

from spark_sink import spark_scratch
from spark_sink.errors import SinkSettingInvalid
from spark_sink.spark_scratch import check_scratch


def test_scratch_when_a_folder_of_several_is_of_use_then_spark_may_start(tmp_path: Path) -> None:
    check_scratch({"spark.local.dir": f"/proc/nowhere, {tmp_path / 'made'}"})


def test_scratch_when_no_folder_is_of_use_then_the_error_says_why_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/proc/nowhere,{tmp_path}")
    monkeypatch.setattr(spark_scratch, "LEAST_BYTES", 1 << 60)
    with pytest.raises(SinkSettingInvalid) as refused:
        check_scratch({"spark.local.dir": str(tmp_path)})
    assert "/proc/nowhere can't be written (" in refused.value.found
    assert f"{tmp_path} has " in refused.value.found
