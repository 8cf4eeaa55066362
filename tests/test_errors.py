"""The codes of errors, which agents, gateways, lakes, databases and operators keep."""

import json
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest
from menura.errors import MenuraError

from tests.exit_codes_page import PAGE, page
from tests.servers import ROOT

#: every code of a component's errors; a code that is here is never changed
CODES: dict[str, list[str]] = json.loads((ROOT / "tests/golden/error_codes.json").read_text())


@pytest.mark.parametrize("component", CODES)
def test_codes_when_classes_derive_them_then_they_are_the_known_ones_and_unique(component: str) -> None:
    for module in walk_packages(import_module(component).__path__, f"{component}."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            import_module(module.name)
    errors = [error for error in _below(MenuraError) if error.__module__.startswith(f"{component}.")]
    codes = sorted(error.code for error in errors if ".errors." in f"{error.__module__}.")
    assert codes == CODES[component], "a class that gets another name keeps its `code`; a new code joins the file"
    assert len(set(codes)) == len(codes)
    assert {error.code for error in errors} == set(codes), "a class of another module has the `code` of its base"


def _below(error: type[MenuraError]) -> Iterator[type[MenuraError]]:
    for below in error.__subclasses__():
        yield below
        yield from _below(below)


def test_page_of_exit_codes_when_errors_have_changed_then_it_was_written_anew() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.exit_codes_page"
