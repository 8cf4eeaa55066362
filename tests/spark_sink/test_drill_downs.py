"""Lakes that something has changed, which verifications find at the right key; `make mutants` has many more seeds."""

from pathlib import Path

import pytest

from tests.spark_sink import mutants

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(24))
def test_table_when_its_lake_is_changed_or_only_its_source_then_rows_are_named_or_none_differs(
    seed: int, tmp_path: Path
) -> None:
    mutants.run(seed, tmp_path)
