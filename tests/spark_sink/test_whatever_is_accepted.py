"""Whatever the wire accepts, the lake takes, or stops that table: the sink goes on, and so do other sources."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from menura.landing import LandedCut
from menura.v1.changes_pb2 import CutEnd

from spark_sink.lake.delta_table import open_table, scan
from spark_sink.reading import stopped_tables
from tests.accepted_cuts import accepted_cuts, ends, telling_end, telling_events
from tests.spark_sink.landing import Workload, Writer, insert, lake_rows, table_id

pytestmark = pytest.mark.spark

EVENTS, ORDERS = Workload.EVENTS, Workload.ORDERS
SOURCES = 60


def made_up(strategy: st.SearchStrategy[Any], accept: Callable[[str, Any], list[LandedCut]]) -> list[list[LandedCut]]:
    """Cuts that were accepted, of so many sources."""
    found: list[list[LandedCut]] = []

    @settings(max_examples=20 * SOURCES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(made=strategy)
    def make(made: Any) -> None:
        if len(found) < SOURCES and (cuts := accept(f"s{len(found)}", made)):
            found.append(cuts)

    make()
    assert len(found) == SOURCES
    return found


def test_cuts_when_the_wire_accepts_them_then_the_lake_does_and_another_source_goes_on(
    follow: Callable[..., None], writer: Writer, lake: Path
) -> None:
    def accept(source: str, made: list[CutEnd]) -> list[LandedCut]:
        return accepted_cuts(source, made)

    sources = made_up(st.lists(ends, min_size=1, max_size=3), accept)
    writer.cut((EVENTS, [insert(kind="before", value=1.0)]))
    for cut in itertools.chain(*sources):
        writer.write_entry([cut])
    writer.cut((EVENTS, [insert(kind="behind", value=2.0)]))
    follow()
    assert [row["kind"] for row in lake_rows(lake, EVENTS)] == ["before", "behind"]
    assert newest(lake) == {**{f"s{number}": len(cuts) for number, cuts in enumerate(sources)}, "shop": 2}


def test_a_table_when_whatever_is_said_of_its_definition_then_it_goes_on_or_stops_and_no_other_does(
    follow: Callable[..., None], writer: Writer, lake: Path
) -> None:
    """Columns, keys, names and literals that no server has, and the wire has no reason to refuse."""

    def accept(source: str, told: list[dict[str, Any]]) -> list[LandedCut]:
        return accepted_cuts(source, [telling_end(told, 100)], after_cut=1, after_gsn=99)

    sources = made_up(st.lists(telling_events, min_size=1, max_size=3), accept)
    writer.cut((EVENTS, [insert(kind="before", value=1.0)]))
    for number, (cut,) in enumerate(sources):
        source = f"s{number}"
        writer.cut((ORDERS, [insert(id=1, amount=1, note="before")]), source=source)
        writer.write_entry([cut])
        writer.cuts["acme", source], writer.gsns["acme", source] = 2, itertools.count(200)
        writer.cut((ORDERS, [insert(id=2, amount=2, note="behind")]), source=source)
    writer.cut((EVENTS, [insert(kind="behind", value=2.0)]))
    follow()
    stopped = {stop.table for stop in stopped_tables(str(lake))}
    told = sum(len(cut.events) for (cut,) in sources)
    assert count(lake, "events") >= told > SOURCES
    assert [row["kind"] for row in lake_rows(lake, EVENTS)] == ["before", "behind"]
    assert newest(lake) == {**{f"s{number}": 3 for number in range(SOURCES)}, "shop": 2}
    orders = {table_id(ORDERS, source=f"s{number}") for number in range(SOURCES)}
    assert stopped < orders
    for table in orders - stopped:
        assert {2} <= {row["id"] for row in lake_rows(lake, ORDERS, source=table.source)}, table


def count(lake: Path, name: str) -> int:
    records = open_table(f"{lake}/_menura/{name}")
    assert records is not None
    return int(scan(records, "SELECT count(*) FROM t").read_all().column(0)[0].as_py())


def newest(lake: Path) -> dict[str, int]:
    cuts = open_table(f"{lake}/_menura/cuts")
    assert cuts is not None
    rows = scan(cuts, "SELECT source, max(cut) AS cut FROM t GROUP BY source").read_all().to_pylist()
    return {row["source"]: row["cut"] for row in rows}
