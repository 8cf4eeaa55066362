"""A minute of `make churn`: rows, definitions and kills at once, and each table equal to its source at the end."""

import os
from pathlib import Path

import pytest

from tests.churn.run import INGREDIENTS, Plan, churn

pytestmark = [pytest.mark.spark, pytest.mark.kill]

#: half a minute each in CI, beside all other tests; `make churn` runs more servers, longer and faster
SERVERS = os.environ.get("MENURA_CHURN_SERVERS", "mariadb mysql postgresql").split()


@pytest.mark.parametrize("server", SERVERS)
def test_lake_when_everything_changes_at_once_under_kills_then_each_table_equals_its_source(
    server: str, tmp_path: Path
) -> None:
    everything, nothing = frozenset(INGREDIENTS), frozenset[str]()
    plan = Plan(server, 1, seconds=30, rate=200, ingredients=everything, allowed=nothing, least_transactions=500)
    report = churn(plan, tmp_path)
    assert report.is_sound, str(report)
    assert report.transactions >= 500
    assert report.statements and report.kills
