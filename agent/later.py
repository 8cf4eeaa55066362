"""Modules that load once something of them is used, for libraries that import what the agent never needs.

What is imported stays in memory for as long as the agent runs: DECISIONS 249 has what each is worth.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


class _Later(ModuleType):
    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


@contextmanager
def later(*names: str) -> Iterator[None]:
    """What is imported inside gets these modules so. Whoever imports one afterwards gets the module itself.

    >>> with later("sched"):
    ...     import sched
    >>> "sched" in sys.modules, sched.scheduler().empty(), "sched" in sys.modules
    (False, True, True)
    """
    stands_for = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(stands_for)
    try:
        yield
    finally:
        for name, module in stands_for.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
