"""Every example in a docstring prints what the docstring says."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.servers import ROOT

#: of each, the folder that Python imports it from
PACKAGES = {
    "agent": ROOT,
    "controlplane_api": ROOT,
    "gateway": ROOT,
    "proto/menura": ROOT / "proto",
    "spark_sink": ROOT,
    "tests": ROOT,
}
#: not in the midst of a line: there it is a text about examples
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)


def examples_of(module: Path) -> int:
    return len(EXAMPLE.findall(module.read_text()))


def modules() -> list[object]:
    """Each module with examples; which ones these are is read from the files, so that no module is imported for it."""
    found = []
    for package, root in PACKAGES.items():
        for file in sorted((ROOT / package).rglob("*.py*")):
            if file.suffix in (".py", ".pyx") and examples_of(file):
                parts = file.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found.append(pytest.param(name, file, id=name))
    return found


@pytest.mark.parametrize(("name", "file"), modules())
def test_examples_when_they_run_then_they_print_what_the_docstring_says(name: str, file: Path):
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner(verbose=False)
    tests = finder.find(importlib.import_module(name))
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not report, "".join(report)
    # one of a nested function, or of an attribute, would never run
    assert runner.summarize(verbose=False).attempted == examples_of(file), "doctest does not find each example"
