"""agent/CONFORMANCE.md says what is true: every type, setting and kind of statement on every server, run anew."""

from itertools import chain
from pathlib import Path

import agent.errors
import agent.sources.postgresql.errors
import spark_sink.errors
from tests.conformance.keys import DERIVED, LOGGED, examine_keys, keys_section
from tests.conformance.platform import examine_all
from tests.conformance.report import DOCUMENT, document, stops
from tests.conformance.run import WRONG
from tests.conformance.stops import STOPS
from tests.servers import ROOT


def test_document_when_every_case_is_run_again_says_what_is_found(tmp_path: Path) -> None:
    findings = examine_all(tmp_path)

    of_types = [outcome for found in findings.values() for types in found.types.values() for outcome in types.values()]
    assert len(of_types) > 1800
    assert WRONG not in of_types
    assert not [name for found in findings.values() for name, outcome in found.flows.items() if outcome == WRONG]
    assert DOCUMENT.read_text(encoding="utf-8") == document(findings, examine_keys(tmp_path)), (
        "run `python -m tests.conformance`"
    )


def test_foreign_keys_when_every_case_is_run_again_then_the_document_says_what_is_found(tmp_path: Path) -> None:
    found = examine_keys(tmp_path)

    outcomes = [outcome for cells in found.values() for outcome in cells.values()]
    assert WRONG not in outcomes
    assert outcomes.count(DERIVED) > 25
    assert outcomes.count(LOGGED) > 8
    assert keys_section(found) in DOCUMENT.read_text(encoding="utf-8"), "run `python -m tests.conformance`"


def test_reasons_when_they_are_listed_then_errors_have_those_codes_and_tests_show_them() -> None:
    classes = [agent.errors, agent.sources.postgresql.errors, spark_sink.errors]
    codes = {getattr(found, "code", "") for module in classes for found in vars(module).values()}
    for stop in chain.from_iterable(STOPS.values()):
        assert stop.code in codes | {"REREAD_LIMIT"}, stop
        assert stop.code in (ROOT / stop.shown_by).read_text(encoding="utf-8"), stop
    assert stops() in DOCUMENT.read_text(encoding="utf-8")
