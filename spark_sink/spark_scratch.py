"""Spark's scratch folders on this machine: there it sorts, and keeps what its processes fetch.

A start of Spark without one that can be written ends its JVM, and without room fails with no more than Java's class of
error. So they are looked at before.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from spark_sink.errors import SinkSettingInvalid

#: its jars, and the code for executors
LEAST_BYTES = 64 << 20
#: of Java, which asks no TMPDIR
_JAVAS_OWN = "/tmp"  # noqa: S108


def scratch_folders(settings: Mapping[str, str]) -> list[str]:
    """
    >>> scratch_folders({"spark.local.dir": "/data/a, /data/b"}), scratch_folders({})
    (['/data/a', '/data/b'], ['/tmp'])
    """
    chosen = os.environ.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or _JAVAS_OWN
    return [folder.strip() for folder in chosen.split(",")]


def check_scratch(settings: Mapping[str, str]) -> None:
    """Raises `SinkSettingInvalid` where none of the folders is of use."""
    wrong = [found for folder in scratch_folders(settings) if (found := _wrong_with(folder))]
    if len(wrong) == len(scratch_folders(settings)):
        raise SinkSettingInvalid(
            "looking for Spark's scratch folder",
            "; ".join(wrong),
            data="Nothing was read or written",
            remedy="Free space there, or name another folder in SPARK_LOCAL_DIRS",
        )


def _wrong_with(folder: str) -> str:
    """Empty: nothing."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        free = shutil.disk_usage(folder).free
    except OSError as failed:
        return f"{folder} can't be written ({failed.strerror})"
    if free < LEAST_BYTES:
        return f"{folder} has {free >> 20} MiB free, of {LEAST_BYTES >> 20} that a start needs"
    return ""
