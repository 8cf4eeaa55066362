"""What `menura doctor` asks any host, whichever part of Menura is on it. None: it can't be told."""

import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

#: systemd's own client of a time server makes it once it has an answer
_SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
_MEMORY = Path("/proc/meminfo")
_ASK_SECONDS = 10


def clock_is_synchronised() -> bool | None:
    """By a time server, as systemd knows it."""
    if _SYNCHRONISED.exists():
        return True
    try:
        said = subprocess.run(
            ["timedatectl", "show", "-p", "NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(said.stdout.strip())


def available_memory_bytes() -> int | None:
    with suppress(OSError):
        found = re.search(r"^MemAvailable:\s+([0-9]+) kB", _MEMORY.read_text(), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    return None


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there, as far as this user may see."""
    return next((each for each in (folder, *folder.parents) if _is_there(each)), Path("/"))


def _is_there(path: Path) -> bool:
    with suppress(OSError):  # below a folder that is another user's alone
        return path.exists()
    return False


def free_bytes(folder: Path) -> int | None:
    """Of the disk on which it is, or will be."""
    with suppress(OSError):
        return shutil.disk_usage(existing(folder)).free
    return None
