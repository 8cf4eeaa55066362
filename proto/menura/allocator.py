"""What the C library does with memory that is freed, and the kernel with code that is not run any more.

Where the library is not glibc, its own ways stay; where the kernel is not Linux, its.
"""

import ctypes
from pathlib import Path

#: of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: of sys/mman.h
_MADV_DONTNEED = 4
#: of the code of one library: others are hardly worth the call
LEAST_CODE_BYTES = 512 << 10
_MAPS = Path("/proc/self/maps")

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

    Of what is mapped from a file, can be executed and can't be written. Such a page is as its file has it, so the
    kernel may drop it at any time. It drops those that a process has mapped later than most others.
    """
    for begin, end in _code(_MAPS.read_text()) if _MAPS.exists() else ():
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _code(maps: str) -> list[tuple[int, int]]:
    r"""Where it begins and ends, of proc(5).

    >>> lines = ["00400000-00800000 r-xp 0000 fe:01 7 /bin/python3", "00800000-00c00000 rw-p 0000 fe:01 7 /bin/python3"]
    >>> lines += ["00c00000-00c01000 r-xp 0000 fe:01 9 /lib/small.so", "ffff0000-ffffffff r-xp 0000 00:00 0 [anon]"]
    >>> _code("\n".join(lines))
    [(4194304, 8388608)]
    """
    lines = [line.split() for line in maps.splitlines()]
    found = [line[0].partition("-") for line in lines if line[1] == "r-xp" and line[4] != "0"]
    areas = [(int(begin, 16), int(end, 16)) for begin, _, end in found]
    return [(begin, end) for begin, end in areas if end - begin >= LEAST_CODE_BYTES]
