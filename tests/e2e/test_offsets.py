"""A stopped table's position, altered to an earlier and to a later one: what comes again, what is skipped."""

from collections import Counter

import pytest

from spark_sink.reading import changelog
from spark_sink.work import TableId
from tests.e2e import load
from tests.e2e.lake import wait_until_equal
from tests.e2e.test_log_gone import gap_events
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE, TABLE = "altered", "moved"


def test_offset_when_altered_back_and_ahead_then_rows_come_again_and_the_gap_is_told_and_healed(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, name = servers["mysql"], "altered", f"{DATABASE}.{TABLE}"
    table = TableId(running.tenant, source, DATABASE, TABLE)
    offset = f"{running.table_path(source, DATABASE, TABLE)}/offset"
    load.create_tables(server, DATABASE, TABLE, rows=5)

    def equal() -> None:
        wait_until_equal(running.lake, running.tenant, source, server, DATABASE, [TABLE])

    def stop() -> str:
        running.command("sync", "stop", source, name)
        return str(running.get(offset)["position"])

    def go_on_at(position: str) -> None:
        running.command("offset", "set", source, name, "--to", position, "--reason", "ticket 7")
        running.command("sync", "start", source, name)

    def times_of_seven() -> list[int]:
        """How often the changelog has each of the 7 rows.

        The one behind them may be there twice too: a command is done before its agent has heard of it.
        """
        ids = Counter(changelog(str(running.lake), table)["id"].to_pylist())
        return [ids[number] for number in range(5 + 1, 5 + 7 + 1)]

    agent = running.agent(source, {source: server})
    with agent:
        running.start_sync(source, DATABASE, TABLE, "oldest")
        equal()
        early = stop()
        running.command("sync", "start", source, name)
        load.insert_rows(server, DATABASE, TABLE, 7)
        equal()
        stop()
        go_on_at(early)
        load.insert_rows(server, DATABASE, TABLE, 1)
        wait_for("rows to come again", lambda: times_of_seven() == [2] * 7)
        equal()
        numbers = changelog(str(running.lake), table)["_gsn"].to_pylist()
        assert len(set(numbers)) == len(numbers)
        stop()
    load.insert_rows(server, DATABASE, TABLE, 3)  # while nobody can read them
    go_on_at("".join(str(server.run("SELECT @@GLOBAL.gtid_executed")[0][0]).split()))
    with agent:
        (gap,) = gap_events(running, source, TABLE)
        assert "was altered: ticket 7" in gap["unlogged_changes"]
        equal()
        wait_for("its dump's end", lambda: running.table(source, DATABASE, TABLE)["unlogged"] is None)
        load.insert_rows(server, DATABASE, TABLE, 2)
        equal()
