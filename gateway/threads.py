"""The gateway's threads, a pool for each kind of waiting, so that none of them waits for another's.

A tenant has less than all of a pool at a time: others' calls wait for none of its slow ones (`shares`). Of those that
land, where each call may wait for a store, a tenant alone has as many as are asked for, and there are more for others.

A commit asks the database some hundred things, and after each of them its thread waits for the interpreter. The event
loop has that all the time where many streams bring something. So a thread waits for it for `SWITCH_SECONDS`; Python's
own 5 ms would be most of a second for a commit.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from gateway.shares import FairThreads, Turns

#: one for the commit that runs, one for the gateway's lease, the others for runs that begin and end
COMMIT_THREADS, RUN_THREADS = 5, 3
#: of what agents report, which waits for the database; and of what streams ask and wait for, as who an agent is
REPORT_THREADS, ASK_THREADS = 4, 6
ENROL_THREADS = 2
#: of packages that agents download
PACKAGE_THREADS = 2
#: of the event loop: more than there are tasks of the gateway's own that do something there, one call at a time each.
#: What agents ask has no place in them.
BACKGROUND_THREADS = 16
#: that a thread computes while another one waits for the interpreter; of the whole process
SWITCH_SECONDS = 0.0005
_SWITCHING = threading.Lock()
#: before it, one for each gateway that runs in the process: first the process's own
_FORMER_SECONDS: list[float] = []


@dataclass(frozen=True, slots=True)
class Threads:
    landing: FairThreads
    commits: Executor
    #: of the same pool: what runs begin and end with
    runs: FairThreads
    reporting: FairThreads
    asking: FairThreads
    packages: FairThreads
    enrolling: FairThreads


@contextmanager
def threads(landing_threads: int) -> Iterator[Threads]:
    """Inside of an event loop, whose default pool becomes the gateway's too; at the end what runs is awaited."""
    background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="background")
    asyncio.get_running_loop().set_default_executor(background)
    with _switching(), ExitStack() as pools:

        def pool(count: int, name: str) -> Executor:
            return pools.enter_context(ThreadPoolExecutor(count, thread_name_prefix=name))

        commits = pool(COMMIT_THREADS, "commit")
        all_landing = with_spare(landing_threads)
        yield Threads(
            landing=_fair(pool(all_landing, "landing"), all_landing),
            commits=commits,
            runs=_fair(commits, RUN_THREADS),
            reporting=_fair(pool(REPORT_THREADS, "report"), REPORT_THREADS),
            asking=_fair(pool(ASK_THREADS, "ask"), ASK_THREADS),
            packages=_fair(pool(PACKAGE_THREADS, "package"), PACKAGE_THREADS),
            enrolling=_fair(pool(ENROL_THREADS, "enrol"), ENROL_THREADS),
        )


@contextmanager
def _switching() -> Iterator[None]:
    """Inside: `SWITCH_SECONDS`. Behind the last gateway of the process, in whatever order they end, as before."""
    with _SWITCHING:
        _FORMER_SECONDS.append(sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        with _SWITCHING:
            sys.setswitchinterval(_FORMER_SECONDS.pop())


def of_tenant(count: int) -> int:
    """So many of them one tenant may have at a time."""
    return count - max(1, count // 3)


def with_spare(count: int) -> int:
    """So many that one tenant may have `count` at a time: as much as before where it is alone."""
    return count + max(1, count // 2)


def _fair(pool: Executor, count: int) -> FairThreads:
    return FairThreads(pool, Turns(count, most_of_tenant=of_tenant(count)))
