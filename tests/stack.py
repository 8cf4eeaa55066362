"""Menura's processes as a user starts them, for end-to-end tests, benchmarks and the demo.

Every process is the installed `menura` command in a session of its own, with its log in the scratch
folder; leaving the context stops all of them, and what does not stop is killed.
"""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from tests.needs import needs_setup
from tests.servers import Server, free_port

MENURA = [sys.executable, "-m", "menura.cli"]
#: deadlines bound a hang; a starved machine takes long for anything
STOP_SECONDS = 300

#: of this process's tests: those that run, and those that ran in the current test
started: "list[Process]" = []

T = TypeVar("T")

TOLD_LINES = 12
#: between two looks at what a test waits for
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 0.5


class ProcessDied(AssertionError):
    """A process has failed while a test waited for something of it."""

    def __init__(self, what: str, died: Sequence["Process"]) -> None:
        ends = "\n".join(f"{each.log.stem} has ended with {each.code}:\n{each.tail()}" for each in died)
        super().__init__(f"waited for {what}, and a process has died meanwhile\n{ends}")


def wait_for(what: str, probe: Callable[[], T | None], seconds: float = 300, every: float | None = None) -> T:
    """The first truthy answer of `probe`; a TimeoutError that says what was waited for and the last answer.

    A `ProcessDied` at once where a process of a test's stack has failed that nobody had asked to end, or seen ended.
    Without `every` the pauses grow with the wait and with what a probe takes: what is waited for needs the CPU.
    """
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        answer = probe()
        if answer:
            return answer
        died = [process for process in started if process.has_died()]
        if died:
            if answer := probe():  # its end, or the last that it did
                return answer
            raise ProcessDied(what, died)
        now = time.monotonic()
        if now - began > seconds:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}; last answer: {answer!r}")
        growing = max(SHORTEST_PAUSE_SECONDS, min((now - began) / 8, LONGEST_PAUSE_SECONDS), now - asked)
        time.sleep(growing if every is None else every)


def http_client(url: str, token_file: Path | None = None) -> httpx.Client:
    """Each request on a connection of its own: a server that closes an idle one may do so under a request.

    `token_file`: with a token of the API, once it is there.
    """

    def authorize(request: httpx.Request) -> httpx.Request:
        if token_file is not None and token_file.exists():
            request.headers["authorization"] = f"Bearer {token_file.read_text().strip()}"
        return request

    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=url, timeout=300, limits=limits, auth=authorize, verify=_trust())


@cache
def _trust() -> ssl.SSLContext:
    """Made once: it takes as long as a test's requests."""
    return ssl.create_default_context()


@dataclass(eq=False)
class Process:
    """One `menura ...` command; `log` is its standard output and error."""

    arguments: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None
    #: a test has asked it to
    is_to_end: bool = False

    def start(self) -> "Process":
        needs_setup("a process that may start Spark")
        self.is_to_end = False
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [*MENURA, *self.arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        if self not in started:
            started.append(self)
        return self

    def kill(self) -> None:
        """kill -9, as a crash would end it."""
        assert self.running is not None
        self.is_to_end = True
        self.running.kill()
        self.running.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still, with the processes of its group."""
        assert self.running is not None
        os.killpg(self.running.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.running.pid, signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to end; its exit code. What is left of its process group afterwards is killed."""
        assert self.running is not None
        self.is_to_end = True
        if self.running.poll() is None:
            self.running.terminate()
        try:
            return self.running.wait(STOP_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def __enter__(self) -> "Process":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def is_running(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def has_died(self) -> bool:
        """It has failed by itself, since anybody has looked last."""
        seen = self.code is not None
        return not self.is_running() and not seen and not self.is_to_end and bool(self.code)

    @property
    def code(self) -> int | None:
        """With which it was seen to have ended."""
        return self.running.returncode if self.running is not None else None

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Stack:
    """A control plane with its gateway, API and sink, each in a process of its own, over one folder."""

    folder: Path
    tenant: str = "acme"
    cut_interval_ms: int = 200
    #: of each source, and of its dumps; None: the gateway's own defaults
    credit_window_bytes: int | None = None
    #: the gateway takes agents by their certificates
    with_ca: bool = False
    #: folder in an object store for landing and lake, with the options that reach it; '': folders of this machine
    store: str = ""
    storage: Sequence[str] = ()
    #: further arguments of `menura sink run`
    sink_options: Sequence[str] = ()
    #: the same of `menura gateway run`
    gateway_options: Sequence[str] = ()
    gateway_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    enrol_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.database = f"sqlite:///{self.folder}/control.db"
        self.landing, self.lake = self.folder / "landing", self.folder / "lake"
        landing, lake = (f"{self.store}/landing", f"{self.store}/lake") if self.store else (self.landing, self.lake)
        storage = [f"--storage-option={word}" for word in self.storage]
        window = self.credit_window_bytes
        certified = ["--ca", str(self.folder / "ca"), "--enrol-listen", f"127.0.0.1:{self.enrol_port}"]
        self.gateway = self._process(
            "gateway", "gateway", "run", "--database", self.database, "--landing", str(landing),
            "--listen", f"127.0.0.1:{self.gateway_port}", "--cut-interval-ms", str(self.cut_interval_ms), *storage,
            *([] if window is None else [f"--{of}credit-window-bytes={window}" for of in ("", "dump-")]),
            *(certified if self.with_ca else []), *self.gateway_options,
        )  # fmt: skip
        self.api = self._process(
            "api",
            "api",
            "run",
            "--database",
            self.database,
            "--listen",
            f"127.0.0.1:{self.api_port}",
            "--admin-token-file",
            str(self.token_file),
        )
        self.sink = self._process(
            "sink", "sink", "run", "--landing", str(landing), "--lake", str(lake), *storage,
            "--api", f"http://127.0.0.1:{self.api_port}", "--api-token-file", str(self.token_file), *self.sink_options,
        )  # fmt: skip
        self.client = http_client(f"http://127.0.0.1:{self.api_port}", self.token_file)

    @property
    def token_file(self) -> Path:
        """Of an admin of the whole fleet, as `menura up` names it; the API writes it at its start."""
        return self.folder / "api.token"

    def _process(self, name: str, *arguments: str) -> Process:
        return Process(list(arguments), self.folder / f"{name}.log")

    def agent(
        self,
        name: str,
        sources: dict[str, Server],
        tenant: str | None = None,
        *,
        tls_mode: str = "preferred",
        passwords: Mapping[str, str] | None = None,
        compression: str = "",
        **filter_settings: object,
    ) -> Process:
        """An agent with these sources, its configuration written into the scratch folder; not started.

        `passwords` are those of sources that shall not have the right one.
        """
        entries = {
            source: {
                "client": {
                    "host": server.host,
                    "port": server.port,
                    "user": "menura",
                    "password": (passwords or {}).get(source, "menura-secret"),
                    "tls": {"mode": tls_mode},
                },
                **filter_settings,
            }
            for source, server in sources.items()
        }
        return self.agent_of(name, entries, tenant, compression)

    def agent_of(
        self, name: str, sources: Mapping[str, object], tenant: str | None = None, compression: str = ""
    ) -> Process:
        """An agent with these entries of its configuration as sources, of whatever kind; not started."""
        import yaml  # noqa: PLC0415  (the bench runs parts of this module without it)

        tenant = tenant or self.tenant
        process = f"agent-{tenant}-{name}"
        state = self.folder / f"{process}.state"
        gateway = {"address": f"127.0.0.1:{self.gateway_port}"}
        if self.with_ca:
            gateway["identity"] = str(state / "identity.pem")
        if compression:
            gateway["compression"] = compression
        config = {
            "tenant": tenant,
            "agent": name,
            "gateway": gateway,
            "state_folder": str(state),
            "sources": dict(sources),
        }
        path = self.folder / f"{process}.yaml"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return self._process(process, "agent", "run", "--config", str(path))

    def enrol(self, agent: Process, *arguments: str, named: bool = False, tenant: str | None = None) -> str:
        """What `menura agent enrol` prints of this agent, with a new token; it has to succeed."""
        config = agent.arguments[-1]
        name = ("--agent", Path(config).stem.rpartition("-")[2]) if named else ()
        token = self.command("token", "create", *name, tenant=tenant).split()[0]
        command = ["agent", "enrol", "--config", config, "--enrol-port", str(self.enrol_port), *arguments]
        environment = {**os.environ, "MENURA_ENROLMENT_TOKEN": token}
        done = subprocess.run([*MENURA, *command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(path, params=parameters)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: object | None = None) -> Any:
        answer = self.client.post(path, json=body or {})
        answer.raise_for_status()
        return answer.json()

    def post_refused(self, path: str, body: object) -> dict[str, Any]:
        """The problem that a command is refused with."""
        answer = self.client.post(path, json=body)
        assert answer.is_client_error, answer.text
        problem: dict[str, Any] = answer.json()
        return problem

    def login_url(self) -> str:
        """Of the dashboard: logs one browser in."""
        return f"http://127.0.0.1:{self.api_port}{self.post('/api/v1/login-links')['path']}"

    def start_sync(
        self, source: str, database: str, table: str, start: object, tenant: str | None = None, **options: object
    ) -> None:
        """Start a table's sync as soon as the cartography has it."""
        self.post(f"{self.wait_for_table(source, database, table, tenant)}/start", {"start": start, **options})

    def command(self, word: str, *arguments: str, tenant: str | None = None) -> str:
        """What `menura WORD ARGUMENTS` prints on a wide terminal, run in this process; it has to succeed."""
        # the bench runs parts of this module without the packages of the commands
        from tests.controlplane_api.commands import menura  # noqa: PLC0415

        where = {
            "MENURA_API": f"http://127.0.0.1:{self.api_port}",
            "MENURA_API_TOKEN_FILE": str(self.token_file),
            "MENURA_TENANT": tenant or self.tenant,
            "COLUMNS": "1000",
        }
        done = menura(word, *arguments, **where)
        assert done.returncode == 0, f"menura {word} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def source(self, source: str, tenant: str | None = None) -> dict[str, Any]:
        """The source as the API shows it."""
        view: dict[str, Any] = self.get(f"/api/v1/tenants/{tenant or self.tenant}/sources/{source}")
        return view

    def table(self, source: str, database: str, table: str) -> dict[str, Any]:
        view: dict[str, Any] = self.get(self.table_path(source, database, table))
        return view

    def told(self, source: str, database: str, table: str) -> str:
        """What the product says of a table: its state, the source's, and the newest lines of its processes' logs."""
        views = (self.table(source, database, table), self.source(source))
        logs = (f"{process.log.name}: {process.tail(TOLD_LINES)}" for process in started if process.is_running())
        return "\n".join((*map(str, views), *logs))

    def table_path(self, source: str, database: str, table: str, tenant: str | None = None) -> str:
        of_source = f"/api/v1/tenants/{tenant or self.tenant}/sources/{source}"
        return f"{of_source}/tables/{quote(database, '')}/{quote(table, '')}"

    def wait_for_table(self, source: str, database: str, table: str, tenant: str | None = None) -> str:
        """Until the cartography has the table; its path in the API."""
        path = self.table_path(source, database, table, tenant)
        wait_for(f"{database}.{table} in {source}'s cartography", lambda: self.client.get(path).is_success)
        return path

    def wait_until_streaming(self, source: str, database: str, *tables: str) -> None:
        """Until each table streams with nothing said of it: no dump of it runs, no row is stale, no stage is silent.

        A lake that equals its source says none of this: the end of a dump, for one, lands after its rows.
        """

        def look() -> bool:
            views = [self.table(source, database, table) for table in tables]
            said = [(view["state"], view["dump"], view["unlogged"], view["problem"]) for view in views]
            return said == [("streaming", None, None, None)] * len(tables)

        wait_for(f"{', '.join(tables)} of {source} to stream", look, 600)

    def api_answers(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx.TransportError:
            return False


@contextmanager
def stack(
    folder: Path,
    *,
    sink: bool = True,
    tenant: str = "acme",
    cut_interval_ms: int = 200,
    credit_window_bytes: int | None = None,
    store: str = "",
    storage: Sequence[str] = (),
    sink_options: Sequence[str] = (),
    gateway_options: Sequence[str] = (),
) -> Iterator[Stack]:
    """Gateway, API and, unless told otherwise, the sink: started, and stopped at the end."""
    options = {"sink_options": sink_options, "gateway_options": gateway_options}
    running = Stack(folder, tenant, cut_interval_ms, credit_window_bytes, store=store, storage=storage, **options)
    with ExitStack() as ends:
        ends.callback(running.client.close)
        processes = [running.gateway, running.api, *([running.sink] if sink else [])]
        for process in processes:
            process.start()
            ends.callback(process.stop)
        wait_for("the API to answer", lambda: running.api_answers() or None)
        yield running
