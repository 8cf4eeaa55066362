"""Which of the slow tests a run leaves out, so that runs with other words have them."""

import json
import subprocess
import sys

from tests.servers import ROOT

WORDS = [f"word-{number}" for number in range(80)]
#: of the first none is slow
FILES = [
    "tests/agent/native/test_edges.py",
    "tests/agent/test_xa.py",
    "tests/agent/test_large_rows.py",
    "tests/agent/test_hostile_gateway.py",
    "tests/e2e/test_row_versions.py",
]
COLLECT = """
import json, sys
import pytest
from tests.in_turn import left_out

class Report:
    def pytest_collection_finish(self, session):
        items = session.items
        print("found", json.dumps([[i.nodeid for i in items]] + [
            [i.nodeid for i in left_out(items, word)] for word in json.loads(sys.argv[1])]))

pytest.main(["-q", "--collect-only", *sys.argv[2:]], plugins=[Report()])
"""


SERVERS = ("mysql", "mariadb", "mariadb11.8", "11.8", "")


def without_server(test: str) -> str:
    return "-".join(part for part in test.replace("[", "-").replace("]", "").split("-") if part not in SERVERS)


def test_words_when_many_are_given_then_each_test_has_its_turn_and_with_each_word_a_test_has_one_server() -> None:
    command = [sys.executable, "-c", COLLECT, json.dumps(WORDS), *FILES]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("found "))
    everything, *left_out = (frozenset(tests) for tests in json.loads(line.removeprefix("found ")))
    assert not frozenset.intersection(*left_out)
    for others in left_out:
        taken = everything - others
        assert len({without_server(test) for test in taken}) == len(taken)
        short = {without_server(test) for test in everything if FILES[0] in test}
        assert short == {without_server(test) for test in taken if FILES[0] in test}
