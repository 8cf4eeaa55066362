"""What the C library does with memory that is freed. Where that is not glibc, its own ways stay."""

import ctypes

#: of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

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
