"""The end of the agent's process, whatever part of it does not end.

Comes in: what ends the agent's parts. Goes out: the process. Nothing is durable here, and nothing is owed: a kill at
any point costs a read of the log from the last committed cut. So no thread, library or destructor may keep an agent
that was told to stop, since its server could not shut down and its successor could not start.
"""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NoReturn

log = logging.getLogger("menura.ending")


def end_within(seconds: float, end: Callable[[], None]) -> bool:
    """Whether `end`, run in a thread, has returned in time. If not, the log has what each thread was doing.

    Raises what `end` raises.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="end")
    ended = pool.submit(end)
    pool.shutdown(wait=False)
    if not wait([ended], seconds).done:
        fields = {
            "seconds": seconds,
            "data": "Nothing is lost: the log is read again from the last committed cut",
            "remedy": "Report this line as a bug",
            "threads": stacks(),
        }
        log.error(
            "stopping: some parts have not ended in time, and the process ends without them", extra={"fields": fields}
        )
        return False
    ended.result()
    return True


def leave(exit_code: int) -> NoReturn:
    """End the process at once, without waiting for threads or for the interpreter's own end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def stacks() -> str:
    """Where each thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)
