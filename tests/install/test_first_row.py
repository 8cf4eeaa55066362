"""How long a package on a database's host takes to its first row in the lake, by the steps of docs/install-agent.md.

Comes in: signed packages, a host that runs systemd and reaches its database and the gateway alone, and the receiving
side, which runs already. Each step is what the document says, word for word. Goes out: that the lake has the rows, and
the seconds of each step in build/first-row.json, which `make first-row` shows. No figure makes the test fail: a loaded
machine takes as long as it takes. What a person needs to read and type is not in them.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_sink.work import TableId
from tests.e2e.lake import rows_in_lake
from tests.e2e.test_identity import identified
from tests.install.booted_host import BootedHost, booted_host
from tests.install.building import Packages, documented
from tests.install.secured_host import END_SECONDS
from tests.servers import ROOT, Server, server
from tests.stack import Stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

FIGURES = ROOT / "build/first-row.json"
ROWS = [(1, "new"), (2, "paid")]
PASSWORD = "menura-secret"


class Steps:
    """What was done, and for how long."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def write(self, package: Path) -> None:
        rounded = {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        total = round(sum(self.seconds.values()), 1)
        figures = {"package_bytes": package.stat().st_size, "steps_seconds": rounded, "total_seconds": total}
        FIGURES.parent.mkdir(exist_ok=True)
        FIGURES.write_text(json.dumps(figures, indent=2) + "\n")


def test_package_when_it_is_installed_as_documented_then_its_first_rows_reach_the_lake_and_each_step_is_timed(
    packages: Packages, key: Path, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server") as database, identified(tmp_path / "stack") as stack, stack.sink:
        database.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, status VARCHAR(10))")
        database.run(*(f"INSERT INTO shop.orders VALUES {row}" for row in ROWS))
        wait_for("the sink to follow", lambda: bool(stack.get("/api/v1/lakes")["lakes"]), END_SECONDS)
        doors = {7070: stack.gateway_port, 7071: stack.enrol_port, 3306: database.port}
        with booted_host(tmp_path / "host", doors) as host:
            with (host.root / "etc/hosts").open("a") as hosts:
                hosts.write("127.0.0.1 localhost gateway.example\n")
            steps = Steps()
            with steps.step("download"):
                for file in (*packages.folder.iterdir(), key.with_name("menura-packages.pem")):
                    shutil.copy(file, host.root / "root")
            _install(host, database, steps)
            _enrol(host, stack, steps)
            _sync(stack, steps)
            steps.write(next(packages.folder.glob("*.deb")))


def _install(host: BootedHost, database: Server, steps: Steps) -> None:
    with steps.step("verify"):
        assert host.run(documented("-verify")).startswith("Verified OK")
    with steps.step("install"):
        host.run(documented("dpkg --install"))
    with steps.step("configure"):
        grants = host.run(documented("agent grants")).replace("'...'", f"'{PASSWORD}'")
        database.run(*(line.rstrip(";") for line in grants.splitlines() if not line.startswith("--")))
        host.run(documented("install -m 0600 /dev/stdin"), f"{PASSWORD}\n")
        (host.root / "etc/menura/agent.yaml").write_text(documented("sources:"))


def _enrol(host: BootedHost, stack: Stack, steps: Steps) -> None:
    with steps.step("token"):
        token = stack.command("token", "create").split()[0]
    *enrol, start = documented("agent enrol").replace("menura1....", token).splitlines()
    with steps.step("enrol"):
        host.run("\n".join(enrol))
    with steps.step("start"):
        host.run(start)
    with steps.step("connect"):
        told = re.compile(r"version \S+; gateway connected; 1 sources")

        def status() -> str:
            return host.shows("menura-agent.service", "StatusText")["StatusText"]

        wait_for("the service to be connected", lambda: told.fullmatch(status()), END_SECONDS)
    with steps.step("check"):
        assert host.run(documented("systemd-run")).startswith("shop: ok")


def _sync(stack: Stack, steps: Steps) -> None:
    look, start, status = (line.split("#")[0].split()[1:] for line in documented("sync start").splitlines())
    with steps.step("find the table"):
        wait_for("the table to be found", lambda: "shop.orders" in stack.command(*look), END_SECONDS)
    with steps.step("first row in the lake"):
        stack.command(*start)
        orders = TableId(stack.tenant, "shop", "shop", "orders")
        found = wait_for("rows in the lake", lambda: rows_in_lake(stack.lake, orders), END_SECONDS)
    assert sorted((row["id"], row["status"]) for row in found) == ROWS
    wait_for("the table to be shown as streaming", lambda: "streaming" in stack.command(*status), END_SECONDS)
