"""One truth: what stands still in the lake is said by REST, the command line and the dashboard, and comes back."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane_api.browser import Browser, browser
from tests.e2e.lake import wait_until_equal
from tests.servers import Flavor, Server, server
from tests.stack import Stack, stack, wait_for

pytestmark = pytest.mark.spark

DATABASE = "truth"
LOST = ("keyed", "bag")
TABLES = (*LOST, "other")


@pytest.fixture
def origin(flavor: Flavor, tmp_path: Path) -> Iterator[Server]:
    with server(flavor, tmp_path / "server") as started:
        started.create_replication_user()
        started.run(
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {DATABASE}.keyed (id INT PRIMARY KEY, note VARCHAR(20))",
            f"CREATE TABLE {DATABASE}.bag (id INT, note VARCHAR(20))",
            f"CREATE TABLE {DATABASE}.other (id INT PRIMARY KEY)",
        )
        yield started


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One whose sink may be away."""
    with stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
def running(started: Stack, origin: Server) -> Stack:
    """With a tenant of the test's own, of whom nobody says what another test has left."""
    started.tenant = f"of-{origin.port}"
    return started


class Truth:
    """The same state in REST, the command line and the dashboard."""

    def __init__(self, running: Stack, page: Browser) -> None:
        self.running, self.page = running, page
        page.open(running.login_url())
        page.wait_for_text("#actor", "token")
        page.open(f"http://127.0.0.1:{running.api_port}/tables?tenant={running.tenant}&source=truth")

    def wait(self, names: Sequence[str], state: str, stage: str | None, words: str = "") -> list[dict[str, Any]]:
        """Until all three say so of these tables; what REST says of each."""
        views = [
            wait_for(f"{name} to be {state} in {stage}", partial(self._view, name, state, stage)) for name in names
        ]
        for command in ("status",), ("tables", "truth"):
            wait_for(f"menura {command[0]} to say so", partial(self._is_printed, command, names, state, stage, words))
        shown = [state.replace("_", " "), *([f"in stage {stage}"] if stage else []), *([words] if words else [])]
        for name in names:
            wait_for(f"the dashboard to show {shown} of {name}", partial(self._is_shown, name, shown))
        return views

    def _view(self, name: str, state: str, stage: str | None) -> dict[str, Any] | None:
        view = self.running.table("truth", DATABASE, name)
        return view if (view["state"], view["stage"]) == (state, stage) else None

    def _is_printed(
        self, command: tuple[str, ...], names: Sequence[str], state: str, stage: str | None, words: str
    ) -> bool:
        printed = self.running.command(*command)
        lines = [next((line for line in printed.splitlines() if f"{DATABASE}.{name} " in line), "") for name in names]
        return words in printed and all(
            state in line and (stage is None or f"held up in stage {stage}" in line) for line in lines
        )

    def _is_shown(self, name: str, shown: Sequence[str]) -> bool:
        row = f"[...document.querySelectorAll('#tables tr')].find((row) => row.innerText.includes('{DATABASE}.{name}'))"
        text = str(self.page.run(f"return {row}?.innerText ?? ''"))
        return all(each in text for each in shown)


def lose_landed_rows(running: Stack, origin: Server, number: int) -> list[Path]:
    """Rows that land while the sink is away, and whose files then are gone; the files, put aside."""
    before = {name: running.table("truth", DATABASE, name)["rows"] for name in LOST}
    folders = {name: running.landing / "data" / running.tenant / "truth" / DATABASE / name for name in LOST}
    held = {file for folder in folders.values() for file in folder.rglob("*.parquet")}
    for name in LOST:
        origin.run(f"INSERT INTO {DATABASE}.{name} VALUES ({number}, 'lost')")
    wait_for(
        "the rows to land",
        lambda: all(running.table("truth", DATABASE, name)["rows"] > before[name] for name in LOST),
    )
    lost = [file for folder in folders.values() for file in folder.rglob("*.parquet") if file not in held]
    for file in lost:
        file.rename(file.with_suffix(".away"))
    return lost


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mariadb"])
def test_table_when_the_lake_can_not_follow_it_then_everybody_says_so_and_retry_and_resync_bring_it_back(
    origin: Server, running: Stack, tmp_path: Path
) -> None:
    with ExitStack() as ends:
        ends.enter_context(running.agent("truth", {"truth": origin}))
        for name in TABLES:
            running.start_sync("truth", DATABASE, name, "oldest")
        truth = Truth(running, ends.enter_context(browser(tmp_path)))
        origin.run(
            f"INSERT INTO {DATABASE}.keyed VALUES (1, 'a'), (2, 'b')",
            f"INSERT INTO {DATABASE}.bag VALUES (1, 'a'), (1, 'a')",
            f"INSERT INTO {DATABASE}.other VALUES (1)",
        )
        wait_until_equal(running.lake, running.tenant, "truth", origin, DATABASE, TABLES)
        assert {view["lake"]["state"] for view in truth.wait(TABLES, "streaming", None)} == {"following"}
        view = wait_for("the lake to have all", lambda: all_in_lake(running))
        assert view["lakes"][0]["cut"] == view["committed_cut"]

        running.sink.stop()
        lost = lose_landed_rows(running, origin, 7)
        truth.wait(["other"], "waiting", "lake", "LAKE_SILENT")  # the sink is away
        assert running.source("truth")["lakes"][0]["lag_us"] is None
        running.sink.start()
        for view in truth.wait(LOST, "failed", "lake", "DATA_FILE_UNREADABLE"):
            assert view["lake"]["cut"] < running.source("truth")["committed_cut"]
        truth.wait(["other"], "streaming", None)
        for file in lost:
            file.with_suffix(".away").rename(file)
        for name in LOST:
            retry, _ = remedies(running, name)
            assert "is tried again" in running.command(*retry)
        wait_until_equal(running.lake, running.tenant, "truth", origin, DATABASE, TABLES)
        truth.wait(TABLES, "streaming", None)

        with running.sink.paused():
            lose_landed_rows(running, origin, 8)
        truth.wait(LOST, "failed", "lake", "DATA_FILE_UNREADABLE")
        origin.run(
            f"DELETE FROM {DATABASE}.keyed WHERE id = 1",
            f"UPDATE {DATABASE}.bag SET note = 'changed' WHERE id = 7",
            f"INSERT INTO {DATABASE}.other VALUES (2)",
        )
        for name in LOST:
            _, resync = remedies(running, name)
            assert "begins anew. Dump " in running.command(*resync)
        origin.run(
            f"INSERT INTO {DATABASE}.keyed VALUES (9, 'after')", f"INSERT INTO {DATABASE}.bag VALUES (9, 'after')"
        )
        wait_until_equal(running.lake, running.tenant, "truth", origin, DATABASE, TABLES)
        running.wait_until_streaming("truth", DATABASE, *TABLES)  # the dumps too have ended
        for view in truth.wait(TABLES, "streaming", None):
            assert (view["problem"], view["earlier_rows_missing"]) == (None, "")
        assert truth.page.complaints() == []


def remedies(running: Stack, name: str) -> tuple[list[str], list[str]]:
    """The two commands that the table's problem names, word for word."""
    message = running.table("truth", DATABASE, name)["problem"]["message"]
    retry, resync = (shlex.split(found) for found in re.findall(r"run: menura ([^;]*?)(?:;|\.$)", message))
    return retry, resync


def all_in_lake(running: Stack) -> dict[str, Any] | None:
    view = running.source("truth")
    return view if [each["cuts_behind"] for each in view["lakes"]] == [0] else None


@pytest.mark.parametrize("flavor", ["mysql"])
def test_tables_when_the_agent_is_away_then_they_wait_and_when_it_is_back_they_stream(
    running: Stack, origin: Server, tmp_path: Path
) -> None:
    with browser(tmp_path) as chromium:
        truth = Truth(running, chromium)
        agent = running.agent("truth", {"truth": origin})
        with agent:
            running.start_sync("truth", DATABASE, "other", "oldest")
            truth.wait(["other"], "streaming", None)
        truth.wait(["other"], "waiting", "source", "AGENT_AWAY")
        with agent:
            truth.wait(["other"], "streaming", None)
