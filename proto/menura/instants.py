"""Instants: microseconds since the epoch, UTC, as an int64."""

import time


def now_us() -> int:
    return time.time_ns() // 1000


def instant_text(at_us: int) -> str:
    """An instant for a reader.

    >>> instant_text(1_700_000_000_000_000)
    '2023-11-14 22:13:20Z'
    """
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_us / 1e6))
