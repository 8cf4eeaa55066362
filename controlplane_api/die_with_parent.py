"""`python -m controlplane_api.die_with_parent PARENT ARGUMENT...`: become `menura ARGUMENT...`, killed when PARENT
dies.

Linux ends the process as soon as its parent is gone, even by kill -9 (prctl PR_SET_PDEATHSIG, which an
exec keeps). Every component may be killed at any moment, so SIGKILL is right and certain. Where there is no
prctl the process lives on until somebody stops it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before this was said
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", "menura.cli", *sys.argv[2:]])  # noqa: S606


if __name__ == "__main__":
    main()
