"""What the C library does with memory that is freed, and the kernel with code that is not run any more.

Where the library is not glibc, its own ways stay; where the kernel is not Linux, its.
"""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

#: of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: of sys/mman.h
_MADV_DONTNEED = 4
#: of the code of one library: others are hardly worth the call
LEAST_CODE_BYTES = 512 << 10
_MAPS = Path("/proc/self/smaps")

_LIBC = ctypes.CDLL(None)
_IS_GLIBC = hasattr(_LIBC, "gnu_get_libc_version")


def keep(block_bytes: int, free_bytes: int) -> None:
    """Larger blocks go back to the kernel when they are freed, and so does what is free beyond the heap's last bytes.

    Call before the first thread starts.
    """
    if _IS_GLIBC:
        _LIBC.mallopt(_M_MMAP_THRESHOLD, block_bytes)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, free_bytes)
        _LIBC.mallopt(_M_ARENA_MAX, 2)


def trim() -> None:
    """What is free now goes back to the kernel: some milliseconds for 100 MiB."""
    if _IS_GLIBC:
        _LIBC.malloc_trim(0)


def give_code_back() -> None:
    """Unmap the pages of this process's code. What is run comes back by itself, 64 KiB at once.

    Of what is mapped from a file, can be executed, and is as the file has it: the kernel may drop such a page at any
    time. It drops those that a process has mapped later than most others. A library with a page that somebody has
    written to, as a loader that relocates code or a debugger does, is left alone: that page would be lost. So is all
    where the kernel does not show what is mapped.
    """
    try:
        areas = _MAPS.read_text()
    except OSError:
        return
    for begin, end in _code(areas):
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _code(areas: str) -> list[tuple[int, int]]:
    r"""Where it begins and ends, of smaps in proc(5).

    >>> clean, written = "\nPrivate_Dirty:         8 kB\nAnonymous:      0 kB\n", "\nSwap:         4 kB\n"
    >>> found = "00400000-00800000 r-xp 0000 fe:01 7 /bin/python3" + clean
    >>> found += "00800000-00c00000 rw-p 0000 fe:01 7 /bin/python3" + clean
    >>> found += "00c00000-01000000 r-xp 0000 fe:01 9 /lib/relocated.so" + written
    >>> found += "01c00000-01c01000 r-xp 0000 fe:01 9 /lib/small.so" + clean
    >>> found += "f0000000-ffffffff r-xp 0000 00:00 0" + clean
    >>> _code(found)
    [(4194304, 8388608)]
    """
    return [
        (begin, end)
        for lines in map(str.splitlines, re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", areas, flags=re.MULTILINE)[1:])
        for place, rights, _, _, inode, *_ in [lines[0].split()]
        for begin, end in [[int(each, 16) for each in place.split("-")]]
        if rights == "r-xp" and inode != "0" and end - begin >= LEAST_CODE_BYTES and not _is_written(lines)
    ]


def _is_written(lines: Sequence[str]) -> bool:
    """Whether the process has pages of its own there, in memory or swapped out.

    Private_Dirty would count those too that the file has, and the kernel has yet to write to the disk.
    """
    return any(line.startswith(("Anonymous:", "Swap:")) and line.split()[1] != "0" for line in lines)
