"""agent/CONFORMANCE.md says what is true: every type, setting and kind of statement on every server, run anew."""

from pathlib import Path

from tests.conformance.platform import examine_all
from tests.conformance.report import DOCUMENT, document
from tests.conformance.run import WRONG


def test_document_when_every_case_is_run_again_says_what_is_found(tmp_path: Path) -> None:
    findings = examine_all(tmp_path)

    of_types = [outcome for found in findings.values() for types in found.types.values() for outcome in types.values()]
    assert len(of_types) > 1800
    assert WRONG not in of_types
    assert not [name for found in findings.values() for name, outcome in found.flows.items() if outcome == WRONG]
    assert DOCUMENT.read_text(encoding="utf-8") == document(findings), "run `python -m tests.conformance`"
