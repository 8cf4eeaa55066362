"""An agent on a host with systemd, beside a server, at a gateway; and orders as an agent hands them to the updater.

Comes in: a release of packages, installed as the document says. Goes out: the host with its agent connected, rows of
its table landing.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from agent.runtime.upgrade_files import Order, OrderFolder, Package
from tests.e2e.test_identity import identified
from tests.e2e.test_tls import landed_rows
from tests.install.booted_host import END_SECONDS, BootedHost, booted_host
from tests.install.building import documented
from tests.install.versions import package_of
from tests.servers import Server, server
from tests.stack import Stack, wait_for

INSTALL = {"deb": "dpkg --install", "rpm": "rpm --upgrade", "tar.gz": "tar --extract"}
RESULT = Path("var/lib/menura-agent-upgrade/result.json")
ORDERS = Path("var/lib/menura-agent/upgrade")


@dataclass
class Upgrading:
    host: BootedHost
    database: Server
    stack: Stack
    extension: str = "deb"
    generation: int = 0
    rows: int = 0

    def order(self, release: Path, way_back: Path) -> int:
        """As the host's agent hands it over, once it has both packages; the order's generation."""
        self.generation += 1
        folder = self.host.root / ORDERS
        order = Order(self.generation, self.package(release), self.package(way_back))
        orders = OrderFolder(folder)
        orders.begin(order)
        for each in (release, way_back):
            shutil.copy(package_of(each, self.extension), folder / self.package(each).sha256)
        self.host.run(f"chown -R menura-agent: /{ORDERS}")
        with patch.dict(os.environ, INVOCATION_ID=self.invocation()):
            orders.write(order)
        self.host.run(f"chown -R menura-agent: /{ORDERS}")
        return self.generation

    def invocation(self) -> str:
        """systemd's name of the process that runs."""
        return self.host.shows("menura-agent.service", "InvocationID")["InvocationID"]

    def package(self, release: Path) -> Package:
        found = package_of(release, self.extension)
        lines = dict(reversed(line.split("  ")) for line in (release / "SHA256SUMS").read_text().splitlines())
        signed = [(release / name).read_bytes() for name in ("SHA256SUMS", "SHA256SUMS.sig")]
        return Package(found.name.split("-")[2], lines[found.name], found.stat().st_size, *signed)

    def answer(self) -> dict[str, object]:
        """Of the order that was written last, once there is one."""
        path = self.host.root / RESULT

        def found() -> dict[str, object] | None:
            read = json.loads(path.read_text()) if path.exists() else {}
            return read if read.get("generation") == self.generation else None

        wait_for(f"an answer to order {self.generation}", lambda: found() is not None, END_SECONDS)
        answer = found()
        assert answer is not None
        return answer

    def waits(self, seconds: int) -> None:
        """How long a version has to be well, from the next order on."""
        settings = self.host.root / "etc/systemd/system/menura-agent-upgrade.service.d/wait.conf"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(f"[Service]\nEnvironment=MENURA_UPGRADE_WAIT_SECONDS={seconds}\n")
        self.host.run("systemctl daemon-reload")

    def log(self) -> str:
        return self.host.run("journalctl --no-pager --output=cat --unit menura-agent-upgrade.service")

    def status(self) -> str:
        return self.host.shows("menura-agent.service", "StatusText")["StatusText"]

    def connected(self, version: str) -> None:
        words = f"version {version}; gateway connected; 1 sources"
        wait_for(f"the agent to say {words!r}", lambda: self.status() == words, END_SECONDS)

    def row_lands(self) -> None:
        self.rows += 1
        self.database.run(f"INSERT INTO shop.t VALUES ({self.rows})")
        wait_for(f"row {self.rows} to land", lambda: landed_rows(self.stack.landing) == self.rows, END_SECONDS)


@contextmanager
def upgrading(folder: Path, release: Path, key: Path, nfpm: Path, extension: str = "deb") -> Iterator[Upgrading]:
    """`key`: the publisher's, with the public half beside it."""
    with server("mariadb", folder / "server") as database, identified(folder / "stack") as stack:
        database.create_replication_user()
        database.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        doors = {7070: stack.gateway_port, 7071: stack.enrol_port, 3306: database.port}
        with booted_host(folder / "host", doors) as host:
            with (host.root / "etc/hosts").open("a") as hosts:
                hosts.write("127.0.0.1 localhost gateway.example\n")
            found = package_of(release, extension)
            shutil.copy(found, host.root / "root")
            if extension == "rpm":
                _tell_rpm(host, nfpm, folder)
            version = found.name.split("-")[2]
            host.run(documented(INSTALL[extension]).replace("menura-agent-0.1.0", f"menura-agent-{version}"))
            host.run(documented("install -m 0600 /dev/stdin"), "menura-secret\n")
            (host.root / "etc/menura/agent.yaml").write_text(documented("sources:"))
            token = stack.command("token", "create").split()[0]
            host.run(documented("agent enrol").replace("menura1....", token))
            shutil.copy(key.with_name("menura-packages.pem"), host.root / "root/menura-packages.pem")
            made = Upgrading(host, database, stack, extension)
            made.connected(version)
            stack.start_sync("shop", "shop", "t", "oldest")
            made.row_lands()
            yield made


def _tell_rpm(host: BootedHost, nfpm: Path, folder: Path) -> None:
    """That this Debian has what the agent's package needs: a package without files that provides it."""
    provided = ["python(abi) = 3.11", "glibc = 2.36", "shadow-utils", "/bin/sh"]
    facts = {"name": "debian", "arch": "amd64", "version": "12.0.0", "provides": provided}
    (folder / "debian.json").write_text(json.dumps(facts))
    made = host.root / "root/debian.rpm"
    command = [
        str(nfpm),
        "package",
        "--config",
        str(folder / "debian.json"),
        "--packager",
        "rpm",
        "--target",
        str(made),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    host.run("mkdir -p /etc/rpm && echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros && rpm --upgrade debian.rpm")


def allow(host: BootedHost) -> None:
    host.run(documented("install -m 0644"))
