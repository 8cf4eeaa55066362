"""Instants: microseconds since the epoch, UTC, as an int64."""

import time


def now_us() -> int:
    return time.time_ns() // 1000
