"""Tests that take seconds, which have their turn in CI (tests/in_turn.py): two lists, without servers and with them.

Those of the first list need no server: `make check` leaves them to `make test`, so that it takes two minutes.
`python -m tests.slow_tests REPORT.xml --seconds 1` writes it anew from a run of
`make quick SLOW=1 PYTEST_ARGS=--junitxml=REPORT.xml`: on a machine with other work, with as many more seconds. With
`--servers` it adds to the second list, from a report of `make test`.
"""

import argparse
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

from tests.servers import ROOT

LIST = ROOT / "tests/slow_tests.txt"
SERVER_LIST = ROOT / "tests/slow_server_tests.txt"


@cache
def slow_tests() -> frozenset[str]:
    """As `tests/folder/test_file.py::test_name`, for all parameters of it."""
    return frozenset(LIST.read_text().split()) | frozenset(SERVER_LIST.read_text().split())


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
    parser.add_argument("--servers", action="store_true")
    arguments = parser.parse_args()
    names = taking(arguments.report, arguments.seconds)
    if arguments.servers:
        names = sorted({*names, *SERVER_LIST.read_text().split()} - {*LIST.read_text().split()})
    (SERVER_LIST if arguments.servers else LIST).write_text("".join(f"{name}\n" for name in names))


if __name__ == "__main__":
    main()
