"""`menura up --data DIR`: gateway, API and sink for one machine, supervised.

Everything is below DIR: control.db, landing/, lake/, log/, api.token, and ca/ where agents come from other hosts. A
lock in DIR keeps a second one out. Commands and the sink come to the API with api.token, an admin's of mode 0600; a
terminal is shown a link that logs one browser in.

A gateway that other hosts reach takes agents with certificates only. Its CA is made at the first start, and each start
prints the line that enrols one agent: its token is in that line alone, and good once, for an hour.
"""

import fcntl
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from menura.addresses import is_loopback
from menura.instants import now_us
from menura.landing import landing_name
from menura.naming import local_name
from menura.signals import set_at_signal

from controlplane_api.api.app import check_listen
from controlplane_api.commands.gateway import COMPARE_HELP, port_after
from controlplane_api.commands.options import DEFAULT_TENANT, single_command
from controlplane_api.database import open_database
from controlplane_api.errors import ComponentFailed, ListenRefused
from controlplane_api.identity import api_tokens, audit, sessions, tokens
from controlplane_api.identity.api_tokens import ApiToken
from controlplane_api.identity.sessions import SessionOf
from controlplane_api.lakes import expect_lake
from controlplane_api.supervisor import Component, Supervisor

app = single_command()

PROBE_SECONDS = 1.0
FIRST_TOKEN_SECONDS = 3_600
#: below the folder
API_TOKEN = "api.token"  # noqa: S105
BEYOND_LOOPBACK = "Listen on 127.0.0.1 and reach it through an SSH tunnel, or run the API by itself, with TLS."
METRICS_HELP = "Serve its Prometheus metrics there; the API's are at /metrics."


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Folder for everything: database, landing, lake, logs.")],
    gateway_listen: Annotated[str, typer.Option(help="HOST:PORT for agents; beyond loopback with certificates.")] = (
        "127.0.0.1:7070"
    ),
    api_listen: Annotated[str, typer.Option(help="HOST:PORT of API and dashboard.")] = "127.0.0.1:7080",
    sink: Annotated[bool, typer.Option("--sink/--no-sink", help="Also run the Spark sink.")] = True,
    keep_landing_hours: Annotated[
        int, typer.Option(min=0, help="Landed files that the lake has are removed after so many hours; 0: never.")
    ] = 24,
    compare_behind_gaps: Annotated[bool, typer.Option("--compare-behind-gaps", help=COMPARE_HELP)] = False,
    gateway_metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=METRICS_HELP)] = None,
    sink_metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=METRICS_HELP)] = None,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With a token that both need wherever other machines reach them."),
    ] = None,
) -> None:
    """Run gateway, API and sink until SIGTERM or Ctrl-C; one that dies is restarted."""
    folder = data.absolute()
    check_listen(api_listen, has_tls=False, anonymous=False, remedy=BEYOND_LOOPBACK)
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with _locked(folder):
        agents = _agents(folder, gateway_listen)
        for listen in (gateway_listen, api_listen, *agents.enrol_listen):
            _check_free(listen)
        # Once, before two processes would: a failure is then said here.
        _prepare_database(folder, with_sink=sink)
        components = _components(
            folder,
            gateway_listen,
            api_listen,
            gateway_metrics=gateway_metrics,
            sink_metrics=sink_metrics,
            metrics_token_file=metrics_token_file,
            keep_landing_hours=keep_landing_hours,
            compare_behind_gaps=compare_behind_gaps,
            with_sink=sink,
        )
        supervisor = Supervisor(components, stop)
        try:
            if supervisor.start():
                typer.echo(f"gateway    {gateway_listen}   (agents dial this)")
                typer.echo(f"dashboard  http://{api_listen}{_login_path(folder)}")
                typer.echo(f"commands   export MENURA_API_TOKEN_FILE={folder / API_TOKEN}")
                typer.echo(f"lake       {folder / 'lake' if sink else '(no sink)'}")
                typer.echo(f"logs       {folder / 'log'}")
                typer.echo(_first_step(folder, agents))
                supervisor.run()
        finally:
            supervisor.stop()


@dataclass(frozen=True, slots=True)
class _Agents:
    """Where agents come from: this host, at their word, or others, with certificates of the CA in `ca`."""

    listen: str
    ca: Path

    @property
    def are_remote(self) -> bool:
        return not is_loopback(self.listen.rpartition(":")[0])

    @property
    def enrol_listen(self) -> tuple[str, ...]:
        return (port_after(self.listen),) if self.are_remote else ()

    @property
    def arguments(self) -> list[str]:
        return ["--ca", str(self.ca), "--enrol-listen", *self.enrol_listen] if self.are_remote else []

    @property
    def address(self) -> str:
        """As other hosts dial it, as far as this host knows."""
        host, _, port = self.listen.rpartition(":")
        return f"{socket.gethostname() if host in ('0.0.0.0', '[::]', '::') else host}:{port}"  # noqa: S104


def _agents(folder: Path, gateway_listen: str) -> _Agents:
    return _Agents(gateway_listen, folder / "ca")


def _first_step(folder: Path, agents: _Agents) -> str:
    """What to do on a database's host."""
    if not agents.are_remote:
        return (
            f'agents     on this host alone, with gateway: {{address: "{agents.listen}"}}; for other hosts:'
            " --gateway-listen 0.0.0.0:7070"
        )
    opened = open_database(_database_url(folder))
    try:
        with opened.write() as connection:
            token = tokens.create(connection, DEFAULT_TENANT, "", FIRST_TOKEN_SECONDS, now_us())
            audit.record(connection, DEFAULT_TENANT, "menura up", "create token", found=f"{token.id} for a new agent")
    finally:
        opened.close()
    return (
        f"agents     on the database's host, within an hour, once:\n"
        f"  menura agent enrol --config agent.yaml --gateway {agents.address} --token {token.reveal()}\n"
        f"  for further agents: menura token create"
    )


def _login_path(folder: Path) -> str:
    """Of a page that logs one browser in; what is no terminal may be a log, and gets the page alone."""
    token = ApiToken.parse((folder / API_TOKEN).read_text().strip())
    if token is None or not sys.stdout.isatty():
        return "/   (menura login prints a link to log in)"
    with closing(open_database(_database_url(folder))) as opened, opened.write() as connection:
        row = api_tokens.row_of(connection, token.id)
        if row is None:
            return "/"
        caller = api_tokens.caller_of(row)
        made = sessions.create_link(connection, SessionOf(caller, row.id), now_us())
        audit.record(connection, "", caller.actor, "make a login link", found="for the terminal of menura up")
    return f"/login#{made.secret}   (logs one browser in, once, within ten minutes; then: menura login)"


def _prepare_database(folder: Path, *, with_sink: bool) -> None:
    """The database is there, and expects what the sink will say of its lake: until then nothing is known of it."""
    lake, landing = str(folder / "lake"), str(folder / "landing")
    opened = open_database(_database_url(folder))
    try:
        if with_sink:
            with opened.write() as connection:
                expect_lake(connection, local_name(lake), lake, landing_name(landing))
    finally:
        opened.close()


def _database_url(folder: Path) -> str:
    return f"sqlite:///{folder}/control.db"


def _components(
    folder: Path,
    gateway_listen: str,
    api_listen: str,
    *,
    gateway_metrics: str | None = None,
    sink_metrics: str | None = None,
    metrics_token_file: Path | None = None,
    keep_landing_hours: int = 24,
    compare_behind_gaps: bool = False,
    with_sink: bool,
) -> list[Component]:
    agents = _agents(folder, gateway_listen)
    database, landing, lake, log = _database_url(folder), folder / "landing", folder / "lake", folder / "log"
    for made in (landing, lake, log):
        made.mkdir(exist_ok=True)
    gateway = ["gateway", "run", "--database", database, "--landing", str(landing), "--listen", gateway_listen]
    gateway += [
        *agents.arguments,
        *_metrics(gateway_metrics, metrics_token_file),
        "--keep-landing-hours",
        str(keep_landing_hours),
        *(["--compare-behind-gaps"] if compare_behind_gaps else []),
    ]
    token = str(folder / API_TOKEN)
    api = ["api", "run", "--database", database, "--listen", api_listen, "--admin-token-file", token]
    sink = ["sink", "run", "--landing", str(landing), "--lake", str(lake), "--name", local_name(str(lake))]
    sink += ["--api", f"http://{api_listen}", "--api-token-file", token, *_metrics(sink_metrics, metrics_token_file)]
    components = [
        Component("gateway", gateway, log / "gateway.log", lambda: _accepts(gateway_listen)),
        Component("API", api, log / "api.log", lambda: _answers(api_listen)),
    ]
    # Spark takes its time and has no port: the sink counts as up as long as it lives.
    return [*components, Component("sink", sink, log / "sink.log", lambda: True)] if with_sink else components


def _metrics(listen: str | None, token_file: Path | None) -> list[str]:
    if listen is None:
        return []
    return ["--metrics", listen, *([] if token_file is None else ["--metrics-token-file", str(token_file.absolute())])]


def _accepts(listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _check_free(listen: str) -> None:
    """Another's answer would be taken for our component's. A port that we can't even name is the component's to say."""
    if _accepts(listen):
        raise ListenRefused(
            f"starting on {listen}",
            "something listens there already",
            data="Nothing was started.",
            remedy="Stop it, or give --gateway-listen and --api-listen other ports.",
        )


def _answers(listen: str) -> bool:
    try:
        return httpx.get(f"http://{listen}/healthz", timeout=PROBE_SECONDS).is_success
    except httpx.TransportError:
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("ab")
    except OSError as unusable:
        raise ComponentFailed(
            f"using the folder {folder}", unusable.strerror or str(unusable), remedy="Give another --data."
        ) from unusable
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise ComponentFailed(
                f"using the folder {folder}",
                "another menura up runs in it",
                remedy="Stop that one, or give another --data.",
            ) from held
        yield
