"""DECISIONS.md: each number once, in order, and the table at its head says what the entries say."""

import re
from collections import Counter

import pytest

from tests.servers import ROOT

TEXT = (ROOT / "DECISIONS.md").read_text()
HEAD, *ENTRIES = re.split(r"^(?=## )", TEXT, flags=re.MULTILINE)
#: number, title, status
ROWS = re.findall(r"^\| (\d{3}) \| (.*) \| ([^|]*) \|$", HEAD, flags=re.MULTILINE)


def test_decisions_when_they_are_numbered_then_each_number_is_there_once_and_in_order() -> None:
    numbers = [entry[3:6] for entry in ENTRIES]
    assert numbers == sorted(set(numbers))


def test_table_of_decisions_when_it_is_read_then_it_has_each_entry_by_its_title() -> None:
    assert [(number, title) for number, title, _ in ROWS] == [
        (entry[3:6], entry.partition("\n")[0][7:]) for entry in ENTRIES
    ]


def test_decision_when_a_later_one_replaces_it_then_the_later_one_is_there() -> None:
    for number, _, status in ROWS:
        assert re.fullmatch(r"Accepted|(In part s|S)uperseded by \d{3}(, \d{3})*", status), number
        assert {number, *re.findall(r"\d{3}", status)} <= {row[0] for row in ROWS}
        assert all(later > number for later in re.findall(r"\d{3}", status))


def test_decision_when_it_is_read_then_it_has_its_four_parts() -> None:
    parts = ["**Context**", "**Choice**", "**Evidence**", "**Consequence**"]
    assert [entry[3:6] for entry in ENTRIES if not all(part in entry for part in parts)] == []


@pytest.mark.parametrize("document", ["DECISIONS.md", "CHANGELOG.md"])
def test_document_when_changes_to_it_were_merged_then_no_line_is_there_in_two_wordings(document: str) -> None:
    entries = re.split(r"^(?=## )", (ROOT / document).read_text(), flags=re.MULTILINE)
    begun = [Counter(line[:40] for line in entry.splitlines() if len(line) >= 40) for entry in entries]
    assert [line for lines in begun for line, times in lines.items() if times > 1] == []
