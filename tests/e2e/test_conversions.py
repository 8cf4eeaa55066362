"""A part of `make conversions`: columns go from type to type on real servers, and the lake is what its sources are."""

from pathlib import Path

import pytest

from tests.conversions.run import Plan, convert, total

pytestmark = pytest.mark.spark

SERVERS = ("mysql", "mysql-default", "mariadb", "mariadb-default")


@pytest.mark.long
def test_lake_when_columns_are_converted_then_it_equals_its_sources_and_only_lossy_tables_were_read_again(
    tmp_path: Path,
) -> None:
    outcomes = convert(Plan(SERVERS, tables=6, rounds=4, settle_seconds=600), tmp_path)
    report = "\n".join([*map(str, outcomes), total(outcomes)])
    assert not any(one.wrong for one in outcomes), report
    for one in outcomes:
        assert one.lossless_tables and one.converted_tables and one.dumps, report
        assert one.lossless_alters and one.alters > one.lossless_alters, report
        assert one.algorithms.keys() > {"COPY"}, report
