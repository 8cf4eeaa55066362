"""zstd, which Python has from 3.14 on and its backport before, and the level at which rows travel."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["LEVEL", "zstd"]

LEVEL = 1
