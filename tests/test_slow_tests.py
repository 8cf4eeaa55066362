"""The lists of slow tests."""

import re
from collections import defaultdict
from pathlib import Path

from tests.servers import ROOT
from tests.slow_tests import slow_tests, taking

REPORT = """<testsuites><testsuite>
<testcase classname="tests.agent.test_one" name="test_a[x.y]" time="0.9" />
<testcase classname="tests.agent.test_one" name="test_a[z]" time="1.1" />
<testcase classname="tests.agent.test_one" name="test_b" time="0.2" />
</testsuite></testsuites>"""


def test_list_when_a_test_has_gone_or_has_another_name_then_its_line_is_wrong() -> None:
    listed: dict[str, set[str]] = defaultdict(set)
    for line in slow_tests():
        path, _, name = line.partition("::")
        listed[path].add(name)
    assert listed
    for path, names in listed.items():
        assert names <= {*re.findall(r"^(?:def |    )(test_\w+)[(,]", (ROOT / path).read_text(), re.MULTILINE)}, path


def test_report_when_some_parameters_of_a_test_take_longer_then_it_is_named_once(tmp_path: Path) -> None:
    (report := tmp_path / "report.xml").write_text(REPORT)
    assert taking(report, 1.0) == ["tests/agent/test_one.py::test_a"]
    assert taking(report, 0.5) == ["tests/agent/test_one.py::test_a"]
    assert taking(report, 0.1) == ["tests/agent/test_one.py::test_a", "tests/agent/test_one.py::test_b"]
