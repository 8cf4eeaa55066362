"""docs/start.md: each of its blocks of commands, run word for word, in its order, on what the first has started."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from spark_sink.work import TableId
from tests.demo.__main__ import ENVIRONMENT
from tests.docs_site.pages import START, blocks
from tests.e2e.lake import rows_in_lake
from tests.needs import needs_setup
from tests.servers import ROOT
from tests.stack import http_client, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: a demo whose live changes last for a second; what comes after them is the same
SHORT = {"DEMO_SECONDS": "1"}
STOP_SECONDS = 600


@contextmanager
def running(block: str, log: Path) -> Iterator[None]:
    """Until the context ends, as Ctrl-C ends it."""
    needs_setup("the demo")
    ENVIRONMENT.unlink(missing_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            # a worker of pytest-xdist does not hear Ctrl-C, and so wouldn't what it starts
            ["env", "--default-signal=INT", "bash", "-c", block],
            cwd=ROOT, env={**os.environ, **SHORT}, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip

    def is_there() -> bool:
        assert process.poll() is None, log.read_text()
        return ENVIRONMENT.exists() and "In another terminal" in log.read_text()

    try:
        wait_for("the demo", is_there, 900)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_demo_when_it_runs_in_the_background_then_sigint_ends_it_and_its_folder_is_gone(tmp_path: Path) -> None:
    """Where a shell lets what it starts ignore SIGINT."""
    needs_setup("the demo")
    command = ["env", "--ignore-signal=INT", sys.executable, "-u", "-m", "tests.demo"]
    with (tmp_path / "log").open("wb") as out:
        demo = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    try:
        logs = "menura-demo-*/stack/*.log"  # of processes; who has said something is known to the demo
        wait_for("the demo to begin", lambda: any(log.stat().st_size for log in tmp_path.glob(logs)), 900)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(STOP_SECONDS) == 130
    finally:
        demo.kill()
        demo.wait()
    assert not list(tmp_path.glob("menura-demo-*")), (tmp_path / "log").read_text()


def test_commands_of_the_start_page_when_they_are_run_then_a_table_is_in_the_lake_and_proven(tmp_path: Path) -> None:
    demo, look, prepare, agent, start, change, prove = (text for _, text in blocks(START))
    (tmp_path / "build").symlink_to(ROOT / "build")
    background: list[int] = []
    number = itertools.count()

    def run(block: str) -> str:
        """Its output, once it has ended well; what it leaves running ends with the test, and goes on writing there."""
        out = tmp_path / f"{next(number)}.out"
        with out.open("wb") as opened:
            shell = subprocess.Popen(
                ["bash", "-c", f"set -eo pipefail\nsource build/demo.env\n{block}"],
                cwd=tmp_path, stdout=opened, stderr=opened, start_new_session=True,
            )  # fmt: skip
        code = shell.wait(600)
        if _runs(shell.pid):
            background.append(shell.pid)
        assert code == 0, f"{block}\nended with {code}: {out.read_text()}"
        return out.read_text()

    with running(demo, tmp_path / "demo.log"):
        try:
            _start_to_end(run, (look, prepare, agent, start, change, prove))
        finally:
            for group in background:
                _end(group)


def _start_to_end(run: Callable[[str], str], page: tuple[str, ...]) -> None:
    look, prepare, agent, start, change, prove = page
    assert "shop.orders" in run(look)
    run(prepare)
    run(agent)
    environment = dict(re.findall(r'export (\w+)="(.*)"', ENVIRONMENT.read_text()))
    source = f"/api/v1/tenants/{environment['MENURA_TENANT']}/sources/pets"
    with http_client(environment["MENURA_API"], Path(environment["MENURA_API_TOKEN_FILE"])) as api:
        cats = f"{source}/tables/pets/cats"
        wait_for("the table to be told", lambda: api.get(cats).is_success)
        assert "pets.cats" in run(start)

        def streams() -> bool:
            view = api.get(cats).json()
            return (view["state"], view["dump"], view["problem"]) == ("streaming", None, None)

        table = TableId(environment["MENURA_TENANT"], "pets", "pets", "cats")
        wait_for("the table to stream", streams)
        # without rows the lake has a cut too: that at which the table was started
        wait_for("its rows in the lake", lambda: bool(rows_in_lake(environment["DEMO_LAKE"], table)))
        assert "Minka" in run(change)

        def weights() -> list[str]:
            rows = rows_in_lake(environment["DEMO_LAKE"], table)
            return sorted(str(row["weight_kg"]) for row in rows)

        wait_for("the change in the lake", lambda: weights() == ["3.8", "4.4"])
        verify, report = prove.splitlines()
        run(verify)
        wait_for(
            "the proof", lambda: [each["state"] for each in api.get(f"{source}/proofs").json()["proofs"]] == ["equal"]
        )
        assert "equal" in run(report)


def _end(group: int) -> None:
    """Until nothing of it runs: whoever has begun it is gone, so nobody else waits for it."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    wait_for("the end of what a block has left", lambda: not _runs(group))


def _runs(group: int) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
