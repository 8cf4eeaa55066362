"""`python -m tests.demo [--source KIND] [--keep]`: start all, make changes, show them arrive, compare to the last row.

The data's way: a database in a scratch folder -> one agent -> `menura up` (gateway, API, sink) -> Delta tables.
Everything lives in one scratch folder and ends with this process; Ctrl-C ends all of it at once.
"""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from tests.demo.kinds import KINDS, Kind
from tests.demo.shop import TABLES, Shop
from tests.demo.view import Follower, show
from tests.live_source import LiveSource
from tests.servers import ROOT, ServerMissing
from tests.stack import Process, Stack, wait_for

SOURCE = "shop"
#: of a demo that keeps running, for other terminals
ENVIRONMENT = ROOT / "build" / "demo.env"
LIVE_SECONDS = 45
#: the sink's session and its first merge, at most
SPARK_SECONDS = 60
CATCH_UP_SECONDS = 60
#: business transactions per second, about
PACE = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="A shop database and the lake that follows it.")
    parser.add_argument("--source", choices=KINDS, default="mariadb", help="the database's kind; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    parser.add_argument("--seconds", type=int, default=LIVE_SECONDS, help="how long the live changes last")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started it in the background ignores it
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="menura-demo-"))
    try:
        with ExitStack() as ends:
            return _demo(console, folder, ends, KINDS[chosen.source], chosen.seconds, keep=chosen.keep)
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except ServerMissing as missing:
        console.print(f"[red]{missing}")
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demo(console: Console, folder: Path, ends: ExitStack, kind: Kind, seconds: int, *, keep: bool) -> int:
    console.print(f"[bold]Menura[/] in {folder}")
    with console.status(f"starting {kind.name}, the agent, and menura up (gateway, API, Spark sink)"):
        database, stack, agent = _start(folder, ends, kind)
    version, port = database.run(kind.version)[0][0], database.server.port
    console.print(f"{kind.name} {version} on port {port}; API and dashboard: {stack.client.base_url}")
    with console.status("the agent reports what exists"):
        for table in TABLES:
            stack.start_sync(SOURCE, database.namespace, table, kind.start)
    console.print(f"{len(TABLES)} tables found and their syncs started {kind.started}")
    follower = Follower(stack, database, SOURCE)
    with _business(kind, database), Live(console=console, refresh_per_second=4) as live:
        deadline = time.monotonic() + SPARK_SECONDS
        has_arrived = False
        while time.monotonic() < deadline:
            looks = follower.look()
            if not has_arrived and all(look.lake_rows for look in looks):  # Spark has started: the clock runs from here
                has_arrived, deadline = True, time.monotonic() + seconds
            live.update(show(looks, "live changes" if has_arrived else "live changes; Spark is starting"))
            _fail_if_dead(stack, agent)
            time.sleep(0.5)
    console.print("business has stopped; waiting until the lake has all of it")
    equal = _compare(console, stack, database)
    console.print(f"API and dashboard: {stack.client.base_url}/")
    if keep:
        console.print(f"[bold]it keeps running[/]; lake: {stack.lake}\nCtrl-C ends it and removes {folder}")
        _write_environment(stack, port)
        console.print(f"In another terminal: source {ENVIRONMENT.relative_to(ROOT)}; menura status")
        console.print("  menura login   (prints a link to the dashboard)")
        console.print(f"  {kind.client.format(port=port)}")
        with _business(kind, database):
            while True:
                _fail_if_dead(stack, agent)
                time.sleep(1)
    return 0 if equal else 1


def _write_environment(stack: Stack, database_port: int) -> None:
    """What commands take from the environment, and where the demo's servers are, as lines of a shell."""
    variables = {
        "PATH": f"{ROOT / '.venv' / 'bin'}:$PATH",
        "MENURA_API": stack.client.base_url,
        "MENURA_TENANT": stack.tenant,
        "MENURA_API_TOKEN_FILE": stack.token_file,
        "DEMO_GATEWAY": f"127.0.0.1:{stack.gateway_port}",
        "DEMO_LAKE": stack.lake,
        "DEMO_DATABASE_PORT": database_port,
    }
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    ENVIRONMENT.write_text("".join(f'export {name}="{value}"\n' for name, value in variables.items()))


def _start(folder: Path, ends: ExitStack, kind: Kind) -> tuple[LiveSource, Stack, Process]:
    """Everything at once: what depends on what waits by itself."""
    stack = Stack(folder / "stack")
    up = Process(
        [
            "up", "--data", str(stack.folder), "--gateway-listen", f"127.0.0.1:{stack.gateway_port}",
            "--api-listen", f"127.0.0.1:{stack.api_port}",
        ],
        stack.folder / "up.log",
    )  # fmt: skip
    ends.callback(stack.client.close)
    ends.enter_context(up)
    stack.gateway = up
    database = ends.enter_context(kind.database(folder / "database"))
    with database.connect() as connection:
        Shop(connection, kind.dialect).create()
    agent = ends.enter_context(database.agent(stack, "shop-db-1", SOURCE))
    wait_for("the API to answer", lambda: _alive(up) and stack.api_answers(), 600)
    return database, stack, agent


def _alive(process: Process) -> bool:
    if not process.is_running():
        raise SystemExit(f"menura {process.arguments[0]} ended by itself:\n{process.tail()}")
    return True


def _fail_if_dead(stack: Stack, agent: Process) -> None:
    _alive(stack.gateway)
    _alive(agent)


@contextmanager
def _business(kind: Kind, database: LiveSource) -> Iterator[None]:
    """The shop does business in the background until the context ends."""
    stop = threading.Event()
    shop = Shop(database.connect(), kind.dialect, seed=time.time_ns())

    def work() -> None:
        while not stop.wait(1 / PACE):
            shop.do_business()

    worker = threading.Thread(target=work, name="business")
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()
        shop.connection.close()


def _compare(console: Console, stack: Stack, database: LiveSource) -> bool:
    """Every table in the database beside its table in the lake; True when all are equal to the last row."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    all_equal = True
    for table in TABLES:
        compared = database.compare(stack, SOURCE, table)
        while not compared.equal and time.monotonic() < deadline:
            time.sleep(0.5)
            compared = database.compare(stack, SOURCE, table)
        console.print(f"  {'[green]✔' if compared.equal else '[red]✘'}[/] {compared}")
        all_equal &= compared.equal
    if not all_equal:
        with contextlib.suppress(OSError):
            console.print(f"menura up said last:\n{stack.gateway.tail(15)}")
    console.print("[bold green]the lake equals the database" if all_equal else "[bold red]the lake differs")
    return all_equal


if __name__ == "__main__":
    sys.exit(main())
