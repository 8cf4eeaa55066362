"""agent/CONFORMANCE.md says what is true: every type, setting and kind of statement on every server, run anew."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

import agent.errors
import agent.sources.postgresql.errors
import spark_sink.errors
from tests.conformance.keys import DERIVED, LOGGED, examine_keys, keys_section
from tests.conformance.platform import examine_all
from tests.conformance.postgresql import subject as postgresql
from tests.conformance.postgresql.cases import MESSAGES
from tests.conformance.report import DOCUMENT, mysql_section, postgresql_section, stops
from tests.conformance.run import WRONG, Findings
from tests.conformance.stops import SOURCE_STOPS, STOPS
from tests.servers import ROOT

AGAIN = "run `python -m tests.conformance`"


@pytest.mark.long
def test_mysql_when_every_case_is_run_again_then_the_document_says_what_is_found(tmp_path: Path) -> None:
    findings = examine_all(tmp_path)

    assert_sound(findings, types=1800)
    assert mysql_section(findings, examine_keys(tmp_path)) in DOCUMENT.read_text(encoding="utf-8"), AGAIN


@pytest.mark.long
def test_postgresql_when_every_case_is_run_again_then_the_document_says_what_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    findings = postgresql.examine_all(tmp_path)

    assert_sound(findings, types=600)
    assert all(found.events.keys() == MESSAGES.keys() for found in findings.values())
    assert postgresql_section(findings) in DOCUMENT.read_text(encoding="utf-8"), AGAIN


def assert_sound(findings: Mapping[str, Findings], types: int) -> None:
    """`types`: at least so many cells of types."""
    of_types = [outcome for found in findings.values() for of in found.types.values() for outcome in of.values()]
    assert len(of_types) > types
    assert WRONG not in of_types
    assert not [name for found in findings.values() for name, outcome in found.flows.items() if outcome == WRONG]


def test_foreign_keys_when_every_case_is_run_again_then_the_document_says_what_is_found(tmp_path: Path) -> None:
    found = examine_keys(tmp_path)

    outcomes = [outcome for cells in found.values() for outcome in cells.values()]
    assert WRONG not in outcomes
    assert outcomes.count(DERIVED) > 25
    assert outcomes.count(LOGGED) > 8
    assert keys_section(found) in DOCUMENT.read_text(encoding="utf-8"), AGAIN


def test_reasons_when_they_are_listed_then_errors_have_those_codes_and_tests_show_them() -> None:
    classes = [agent.errors, agent.sources.postgresql.errors, spark_sink.errors]
    codes = {getattr(found, "code", "") for module in classes for found in vars(module).values()}
    for stop in chain(SOURCE_STOPS, *STOPS.values()):
        assert stop.code in codes | {"REREAD_LIMIT"}, stop
        assert stop.code in (ROOT / stop.shown_by).read_text(encoding="utf-8"), stop
    assert stops() in DOCUMENT.read_text(encoding="utf-8")
