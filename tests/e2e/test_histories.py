"""Odd histories on real servers, all in one run of the whole product: their tables are equal in the lake at the end."""

import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pymysql
import pytest

from tests.churn.comparison import Lake
from tests.churn.kind import MARKER
from tests.e2e.histories import (
    KILL,
    KILL_AGENT,
    LEAVE,
    OTHER,
    OUTSIDE,
    REFUSED,
    RESTART,
    History,
    histories_of,
)
from tests.live_source import MysqlSource, mysql_source
from tests.servers import Flavor
from tests.stack import Process, Stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

SERVERS: dict[str, tuple[Flavor, str]] = {
    "mysql": ("mysql", ""),
    "mariadb": ("mariadb", ""),
    "mariadb-11.8": ("mariadb", "11.8"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_tables_when_their_histories_are_odd_then_the_lake_equals_them(
    name: str, running: Stack, tmp_path: Path
) -> None:
    flavor, release = SERVERS[name]
    source, histories = f"histories-{name.replace('.', '')}", histories_of(name)
    namespace = source.replace("-", "_")
    tables = [table for history in histories for table in history.tables]
    with mysql_source(flavor, tmp_path, namespace, release=release) as origin:
        origin.run(f"CREATE DATABASE {OUTSIDE}", f"CREATE TABLE {MARKER} (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
        for history in histories:
            origin.run(*(statement.format(t=history.name) for statement in history.made))
        with origin.agent(running, source, source, dump={"max_rereads_per_hour": 3600}) as agent:
            for table in (*tables, MARKER):
                running.start_sync(source, namespace, table, "dump")
            lake = Lake(running, source, origin, frozenset())
            assert lake.settle([*tables, MARKER]) == ""
            for history in histories:
                run(history, origin, agent)
            assert lake.settle([*tables, MARKER]) == ""
            verdicts = lake.verdicts(tables)
            assert [str(verdict) for verdict in verdicts if verdict.word != "equal"] == []


def run(history: History, origin: MysqlSource, agent: Process) -> None:
    """By two sessions, which a restart of the server ends."""
    sessions = {False: origin.connect(), True: origin.connect()}
    with ExitStack() as ends:
        ends.callback(lambda: [each.close() for each in sessions.values() if each.open])
        for step in history.statements:
            match step:
                case _ if step in (RESTART, KILL):
                    origin.server.stop(signal.SIGKILL if step == KILL else signal.SIGTERM)
                    origin.server.start()
                    sessions |= {False: origin.connect(), True: origin.connect()}
                case _ if step == KILL_AGENT:
                    begun = streams(agent)
                    agent.kill()
                    agent.start()
                    # one that finds no server at its start would end
                    wait_for("the agent to read on", lambda begun=begun: streams(agent) > begun)
                case _ if step == LEAVE:
                    origin.server.leave(sessions[False])
                    sessions[False] = origin.connect()
                case _:
                    execute(sessions[step.startswith(OTHER)], step.removeprefix(OTHER), history.name)


def streams(agent: Process) -> int:
    """How often it has begun to read."""
    return agent.log.read_text(errors="replace").count(" replication starts ")


def execute(session: "pymysql.connections.Connection", step: str, table: str) -> None:
    statement = step.removeprefix(REFUSED).format(t=table)
    with closing(session.cursor()) as cursor:
        if step.startswith(REFUSED):
            with pytest.raises(pymysql.err.MySQLError):
                cursor.execute(statement)
        else:
            cursor.execute(statement)
