"""Tests without a server that take seconds: `make check` leaves them to `make test`, so that it takes two minutes.

`slow_tests.txt` has their names. `python -m tests.slow_tests REPORT.xml --seconds 1` writes it anew from a run of
`make quick SLOW=1 PYTEST_ARGS=--junitxml=REPORT.xml`: on a machine with other work, with as many more seconds.
"""

import argparse
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

from tests.servers import ROOT

LIST = ROOT / "tests/slow_tests.txt"


@cache
def slow_tests() -> frozenset[str]:
    """As `tests/folder/test_file.py::test_name`, for all parameters of it."""
    return frozenset(LIST.read_text().split())


def taking(report: Path, seconds: float) -> list[str]:
    """Those of a JUnit report of which some parameters took longer."""
    return sorted(
        {
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
            for case in ElementTree.parse(report).iter("testcase")
            if float(case.get("time", 0)) > seconds
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    LIST.write_text("".join(f"{name}\n" for name in taking(arguments.report, arguments.seconds)))


if __name__ == "__main__":
    main()
