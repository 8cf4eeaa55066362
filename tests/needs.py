"""Which tests need more than `.ci/setup environment` brings: a database server, Spark, a browser.

What starts one of these calls `needs_setup` first. Each collected test whose code can reach that call gets the marker
`needs_setup`. Its code is that of the test, of its fixtures and of its parameters, and all of `tests` that these name.
A test that calls `needs_setup` without the marker fails, in every run, on every machine: so `-m "not needs_setup"`
never takes a test that needs a server, and nobody has to mark one by hand.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import pytest

#: whether the running test has the marker; None where no test runs, as in the demo
marked: bool | None = None


def needs_setup(what: str) -> None:
    """Said by a function that is about to start `what`."""
    assert marked is not False, (
        f"this test starts {what}, which tests/needs.py has not found in its code: name the function that does so in"
        " the test, or give the test pytest.mark.needs_setup"
    )


def can_reach_setup(item: pytest.Function) -> bool:
    """Whether this test may call `needs_setup`."""
    used = item._fixtureinfo.name2fixturedefs
    fixtures = [used[name][-1].func for name in item.fixturenames if name in used]
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    roots = (item.function, item.cls, *fixtures, *parameters)
    return any(_reaches(function) for root in roots for function in _code_of(root))


@cache
def _reaches(root: FunctionType) -> bool:
    seen, ahead = {root}, [root]
    while ahead:
        new = _named_by(ahead.pop()) - seen
        seen |= new
        ahead += new
    return needs_setup in seen


@cache
def _named_by(function: FunctionType) -> frozenset[FunctionType]:
    """The functions that a function names: as globals, in its closure, in modules and classes that it names."""
    names = set(_names(function.__code__))
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [value for name, value in function.__globals__.items() if name in names]
    modules = [value for value in values if isinstance(value, ModuleType) and _is_of_tests(value.__name__)]
    values += [value for module in modules for name, value in vars(module).items() if name in names]
    return frozenset(found for value in values for found in _code_of(value))


def _names(code: CodeType) -> Iterator[str]:
    """What code and the functions inside it load by name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code_of(value: object) -> Iterable[FunctionType]:
    """The function of `tests` that a value is, or those of its class."""
    if isinstance(value, FunctionType):
        return [value] if _is_of_tests(value.__module__) else []
    kind = value if isinstance(value, type) else type(value)
    members = [member for each in kind.__mro__ if _is_of_tests(each.__module__) for member in vars(each).values()]
    methods = [getattr(member, "fget", getattr(member, "__func__", member)) for member in members]
    return [method for method in methods if isinstance(method, FunctionType)]


def _is_of_tests(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "tests"
