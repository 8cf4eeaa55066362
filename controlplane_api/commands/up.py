"""`menura up --data DIR`: gateway, API and sink for one machine, supervised.

Everything is below DIR: control.db, landing/, lake/, log/. A lock in DIR keeps a second one out.
"""

import fcntl
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
from menura.landing import landing_name
from menura.naming import local_name
from menura.signals import set_at_signal

from controlplane_api.api.app import parse_listen
from controlplane_api.commands.options import single_command
from controlplane_api.database import open_database
from controlplane_api.errors import ComponentFailed, ListenRefused
from controlplane_api.lakes import expect_lake
from controlplane_api.supervisor import Component, Supervisor

app = single_command()

PROBE_SECONDS = 1.0
METRICS_HELP = "Serve its Prometheus metrics there; the API's are at /metrics."


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Folder for everything: database, landing, lake, logs.")],
    gateway_listen: Annotated[str, typer.Option(help="HOST:PORT for agents.")] = "127.0.0.1:7070",
    api_listen: Annotated[str, typer.Option(help="HOST:PORT of API and dashboard.")] = "127.0.0.1:7080",
    sink: Annotated[bool, typer.Option("--sink/--no-sink", help="Also run the Spark sink.")] = True,
    gateway_metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=METRICS_HELP)] = None,
    sink_metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=METRICS_HELP)] = None,
) -> None:
    """Run gateway, API and sink until SIGTERM or Ctrl-C; one that dies is restarted."""
    folder = data.absolute()
    parse_listen(api_listen)
    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with _locked(folder):
        for listen in (gateway_listen, api_listen):
            _check_free(listen)
        # Once, before two processes would: a failure is then said here.
        _prepare_database(folder, with_sink=sink)
        components = _components(
            folder,
            gateway_listen,
            api_listen,
            gateway_metrics=gateway_metrics,
            sink_metrics=sink_metrics,
            with_sink=sink,
        )
        supervisor = Supervisor(components, stop)
        try:
            if supervisor.start():
                typer.echo(f"gateway    {gateway_listen}   (agents dial this)")
                typer.echo(f"dashboard  http://{api_listen}/")
                typer.echo(f"lake       {folder / 'lake' if sink else '(no sink)'}")
                typer.echo(f"logs       {folder / 'log'}")
                supervisor.run()
        finally:
            supervisor.stop()


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
    with_sink: bool,
) -> list[Component]:
    database, landing, lake, log = _database_url(folder), folder / "landing", folder / "lake", folder / "log"
    for made in (landing, lake, log):
        made.mkdir(exist_ok=True)
    gateway = ["gateway", "run", "--database", database, "--landing", str(landing), "--listen", gateway_listen]
    gateway += _metrics(gateway_metrics)
    api = ["api", "run", "--database", database, "--listen", api_listen]
    sink = ["sink", "run", "--landing", str(landing), "--lake", str(lake), "--name", local_name(str(lake))]
    sink += ["--api", f"http://{api_listen}", *_metrics(sink_metrics)]
    components = [
        Component("gateway", gateway, log / "gateway.log", lambda: _accepts(gateway_listen)),
        Component("API", api, log / "api.log", lambda: _answers(api_listen)),
    ]
    # Spark takes its time and has no port: the sink counts as up as long as it lives.
    return [*components, Component("sink", sink, log / "sink.log", lambda: True)] if with_sink else components


def _metrics(listen: str | None) -> list[str]:
    return [] if listen is None else ["--metrics", listen]


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
