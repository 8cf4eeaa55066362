"""The reference of all figures is that of the code, and names are as the conventions say."""

import re

from tests.metrics_page import PAGE, PORTS, page

STAGES = (
    "controlplane|agent|session|lease|landing|log|dump|lake|verification|retention|registry|sink|search|disk|"
    "certificate|upgrade"
)
LABELS = {"tenant", "agent", "source", "lake", "state", "stage", "what", "code", "volume", "certificate"}


def test_page_of_metrics_when_the_code_has_others_then_it_is_written_anew() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.metrics_page"


def test_figures_when_they_are_named_then_the_stage_comes_first_and_no_label_is_unbounded() -> None:
    figures = [figure for port in PORTS.values() for figure in port]
    assert [figure.name for figure in figures if not re.match(f"menura_({STAGES})_[a-z_]+$", figure.name)] == []
    assert {label for figure in figures for label in figure.labels} <= LABELS
    assert len({figure.name for figure in figures}) == len(figures)
