"""Columns that a filter leaves out no more: the lake gets what earlier rows have in them, and nobody has to ask."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live_source import LiveSource, mysql_source, postgresql_source
from tests.servers import FLAVORS
from tests.stack import Stack, wait_for

NOTES = "notes"


@pytest.fixture(params=[*FLAVORS, "postgresql"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveSource]:
    with ExitStack() as ends:
        if request.param == "postgresql":
            yield ends.enter_context(postgresql_source())
        else:
            yield ends.enter_context(mysql_source(request.param, tmp_path / "server", "wide"))


def test_columns_when_the_filter_leaves_them_out_no_more_then_the_lake_has_their_earlier_values(
    origin: LiveSource, running: Stack, request: pytest.FixtureRequest
) -> None:
    source, namespace = f"wide-{request.node.callspec.id}", origin.namespace
    origin.run(
        f"CREATE TABLE {NOTES} (id INT PRIMARY KEY, note VARCHAR(20), code INT)",
        *(f"INSERT INTO {NOTES} VALUES ({number}, 'note {number}', {number})" for number in range(50)),
    )
    rules = {f"{namespace}.{NOTES}": {"ignored_columns": ["note"]}}
    with origin.agent(running, source, source, filter=rules):
        running.start_sync(source, namespace, NOTES, "dump")
        wait_for("all but the notes", lambda: origin.compare(running, source, NOTES, ["note"]).equal)
        wait_for("the agent's word", lambda: running.table(source, namespace, NOTES)["ignored_columns"] == ["note"])
    origin.run(f"UPDATE {NOTES} SET code = code + 1000 WHERE id < 10")
    with origin.agent(running, source, source):
        wait_for("the notes of all rows", lambda: origin.compare(running, source, NOTES).equal)
        wait_for("nothing to be stale any more", lambda: running.table(source, namespace, NOTES)["unlogged"] is None)
        origin.run(f"INSERT INTO {NOTES} VALUES (100, 'later', 1)")
        wait_for("later rows", lambda: origin.compare(running, source, NOTES).equal)
    dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    assert sum(dump["cause"] == "reread" for dump in dumps) >= 1
