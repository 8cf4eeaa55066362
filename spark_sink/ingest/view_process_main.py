"""`python -m spark_sink.ingest.view_process_main`: one turn of a view on a schedule, in a process beside Spark.

Comes in, on standard input: the sink's settings for views and the turn (`view_process`), then nothing until its end.
Goes out, on standard output: the outcome. Durable is what the turn commits. It ends when its input does, at whatever it
is: whoever started it has gone then. What it writes aside is in its working folder, which its parent removes.
"""

import os
import pickle
import sys
import threading
from typing import BinaryIO

from spark_sink.ingest.view_process import SIZE
from spark_sink.ingest.view_task import view_task


def main() -> None:
    given, gives = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    (size,) = SIZE.unpack(given.read(SIZE.size))
    settings, work = pickle.loads(given.read(size))  # noqa: S301  (of the sink that has started this process)
    threading.Thread(target=_end_with, args=(given,), daemon=True).start()
    (outcome,) = view_task(settings)([work])
    pickle.dump(outcome, gives)
    gives.flush()


def _end_with(given: BinaryIO) -> None:
    given.read(1)
    os._exit(1)


if __name__ == "__main__":
    main()
    os._exit(0)  # no library's thread is waited for
