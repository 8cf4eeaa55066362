"""What Spark's Python workers on this machine are forked from: PySpark's own daemon, which has imported their modules.

Nothing is imported here that starts a thread, as pyarrow and deltalake do: a fork would copy its locks without it.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

#: what a worker imports of PySpark
IMPORTED = ("pyspark.worker",)


def main() -> None:
    for module in IMPORTED:
        import_module(module)
    # A worker collects garbage after each task: not among what all of them share.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
