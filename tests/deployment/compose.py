"""docker-compose.yml as one that reads it and runs it: its services without containers, on this machine.

Comes in: the file, and the lines of docs/containers.md that start it. Each service gets a folder that stands for its
file system. What is mounted there is put there when one of its processes starts: secrets and configurations as copies,
volumes as folders that services share. In commands, environments and copied files, paths and HOST:PORT become those of
this machine. The words of the commands stay as they are. Images that others make (MariaDB's, PostgreSQL's) begin with
a script that makes their data; `tests.deployment.images` does what it does. Nothing is durable after a test.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.deployment import images
from tests.e2e.balancer import Balancer
from tests.needs import needs_setup
from tests.servers import ROOT, free_port
from tests.stack import Process, started, wait_for

START_SECONDS = 900
_LOOPBACK = ("0.0.0.0", "127.0.0.1", "localhost")
_COMMAND = "docker compose "


def compose_file() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return read


def documented_commands() -> list[list[str]]:
    """Words of each `docker compose` line of docs/containers.md, without these two."""
    lines = (ROOT / "docs" / "containers.md").read_text().splitlines()
    return [shlex.split(line, comments=True)[2:] for line in lines if line.startswith(_COMMAND)]


@dataclass(eq=False)
class NativeProcess(Process):
    """The process of a service."""

    words: list[str] = field(default_factory=list)
    user: int | None = None

    def start(self) -> "NativeProcess":
        needs_setup("the processes of docker-compose.yml")
        self.is_to_end = False
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, cwd="/",
                start_new_session=True, user=self.user,
            )  # fmt: skip
        if self not in started:
            started.append(self)
        return self


@dataclass
class Project:
    """The services of the file, none of which runs yet."""

    folder: Path
    services: dict[str, dict[str, Any]] = field(default_factory=lambda: compose_file()["services"])
    secrets: dict[str, dict[str, str]] = field(default_factory=lambda: compose_file()["secrets"])
    processes: dict[str, NativeProcess] = field(default_factory=dict)
    _ends: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        shutil.copytree(ROOT / "deployment", self.folder / "deployment", ignore=shutil.ignore_patterns("secrets*"))
        self.ports = {(name, port): free_port() for name, service in self.services.items() for port in exposed(service)}
        for alias, members in _aliases(self.services).items():
            for port in exposed(self.services[members[0]]):
                door = self._ends.enter_context(Balancer(*(self.ports[name, port] for name in members)))
                self.ports[alias, port] = int(door.address.rpartition(":")[2])

    def __enter__(self) -> "Project":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            self._ends.callback(process.stop)
        self._ends.close()

    # what stands for a container's file system, network and environment

    def root(self, service: str) -> Path:
        folder = self.folder / "containers" / service
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def path(self, service: str, inside: str) -> str:
        """Where on this machine a path of the container is; a path of no mount and of no image is itself."""
        if inside in images.FILES:
            return str(images.FILES[inside])
        for target, source in self._mounts(service):
            if inside == target or inside.startswith(f"{target}/"):
                return f"{source}{inside.removeprefix(target)}"
        return inside

    def native(self, service: str, text: str) -> str:
        """The text with paths and ports of this machine."""
        hosts = {*(name for name, _ in self.ports), *_LOOPBACK}
        names = "|".join(map(re.escape, sorted(hosts, key=len, reverse=True)))

        def address(found: re.Match[str]) -> str:
            host, between, port = found.groups()
            known = self.ports[service if host in _LOOPBACK else host, port]
            return f"{host if host == 'localhost' else '127.0.0.1'}{between}{known}"

        text = re.sub(rf"(?<![\w.-])({names})(:|/|, port: )(\d{{4,5}})\b", address, text)
        text = re.sub(r"(port=)(\d{4,5})\b", lambda found: found[1] + str(self._port(service, found[2])), text)
        return re.sub(r"(?<![\w.])/[\w./-]+", lambda found: self.path(service, found[0]), text)

    def _port(self, service: str, port: str) -> int:
        """Of the service itself; else of the name that agents dial, which stands last."""
        others = [name for name, number in self.ports if number == port]
        return self.ports[(service, port) if (service, port) in self.ports else (others[-1], port)]

    def _mounts(self, service: str) -> Iterator[tuple[str, Path]]:
        entry, root = self.services[service], self.root(service)
        for secret in entry.get("secrets", ()):
            yield f"/run/secrets/{secret}", root / "run/secrets" / secret
        for volume in entry.get("volumes", ()):
            source, target = volume.split(":")[:2]
            yield target, root / target[1:] if source.startswith(".") else self.folder / "volumes" / source
        for target in entry.get("tmpfs", ()):
            yield target, root / target[1:]

    def mount(self, service: str) -> None:
        """As a container finds it when it starts."""
        entry = self.services[service]
        sources = {f"/run/secrets/{name}": self.secrets[name]["file"] for name in entry.get("secrets", ())}
        volumes = [volume.split(":")[:2] for volume in entry.get("volumes", ())]
        sources |= {target: source for source, target in volumes if source.startswith(".")}
        for target, path in self._mounts(service):
            if target not in sources:
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            text = (self.folder / sources[target]).read_text()
            # base64 may look like anything
            path.write_text(text if text.startswith("-----BEGIN") else self.native(service, text))
            path.chmod(0o600)

    def environment(self, service: str) -> dict[str, str]:
        """The service's own, and where this machine's programs are."""
        given = self.services[service].get("environment", {})
        path = ":".join([str(Path(sys.executable).parent), *images.programs(), os.environ["PATH"]])
        places = {"PATH": path, "HOME": str(self.root(service)), "LANG": "C.UTF-8"}
        told = {key: self.native(service, str(value)) for key, value in given.items()}
        return places | told

    def words(self, service: str, command: list[str]) -> list[str]:
        return [self.native(service, word) for word in command]

    def check(self) -> None:
        """No process has ended by itself."""
        ended = [name for name, process in self.processes.items() if not process.is_running()]
        assert not ended, "\n".join(f"{name} has ended: {self.processes[name].tail()}" for name in ended)

    # `docker compose ...`

    def run(self, words: list[str]) -> str:
        """What `docker compose` prints with these words; images are not built."""
        verb, *rest = words
        if verb == "up":
            self.up([word for word in rest if not word.startswith("-")])
        elif verb == "exec":
            return self._execute([word for word in rest if word != "-T"])
        elif verb == "run":
            assert rest[:2] == ["--rm", "--env"], rest
            name, _, value = rest[2].partition("=")
            if value.startswith("$(") and value.endswith(")"):
                value = self.run(shlex.split(value[2:-1])[2:]).strip()
            return self._execute(rest[3:], {name: value})
        elif verb == "stop":
            process = self.processes.pop(rest[0])
            assert process.stop() == 0, process.tail()
        else:
            assert verb == "build", words
        return ""

    def _execute(self, words: list[str], environment: dict[str, str] | None = None) -> str:
        service, *command = words
        if service not in self.processes:
            self.mount(service)
        done = subprocess.run(
            self.words(service, command), env=self.environment(service) | (environment or {}), cwd="/",
            capture_output=True, text=True, check=False, timeout=START_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)} in {service}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self, names: list[str]) -> None:
        """These services, after those that they depend on; each is healthy before the next one that waits for it."""
        for name in names:
            self.up(list(self.services[name].get("depends_on", {})))
            if name not in self.processes:
                self._start(name)
            self._wait_until_healthy(name)

    def _start(self, name: str) -> None:
        self.mount(name)
        service = self.services[name]
        image = service["image"]
        command = self.words(name, [*service.get("entrypoint", ()), *service["command"]])
        server = images.make(image, command, self.environment(name), self._ends)
        log = self.root(name).with_suffix(".log")
        process = NativeProcess([], log, self.environment(name), words=server.command, user=server.user)
        self.processes[name] = process.start()
        scripts = [
            volume.split(":")[1] for volume in service.get("volumes", ()) if "/docker-entrypoint-initdb.d/" in volume
        ]
        images.fill(image, self.environment(name), [Path(self.path(name, script)) for script in scripts])

    def _wait_until_healthy(self, name: str) -> None:
        check = self.services[name].get("healthcheck")
        process = self.processes[name]
        if check is None:
            return
        assert check["test"][0] == "CMD"
        words = self.words(name, check["test"][1:])

        def healthy() -> bool:
            assert process.is_running(), f"{name} has ended: {process.tail()}"
            done = subprocess.run(
                words, env=self.environment(name), capture_output=True, check=False, timeout=START_SECONDS
            )
            return done.returncode == 0

        wait_for(f"{name} to be healthy", healthy, START_SECONDS)


def exposed(service: dict[str, Any]) -> list[str]:
    return list(service.get("expose", ()))


def _aliases(services: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Names that several services have, with these."""
    found: dict[str, list[str]] = {}
    for name, service in services.items():
        networks = service["networks"]
        entries = networks.values() if isinstance(networks, dict) else ()
        for alias in (alias for entry in entries for alias in entry.get("aliases", ())):
            found.setdefault(alias, []).append(name)
    return found
