"""`menura gateway run`: the gateway over the control plane's database, in one process."""

import asyncio
import os
import signal
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from menura.health import Health, Pulse, Readiness
from menura.identity import ENROLMENT_PORT_OFFSET
from menura.metric_families import VolumesCollector
from menura.naming import local_name
from menura.open_files import use_hard_limit
from menura.stores.address import absolute, is_local
from menura.stores.options import parse, use
from menura.stores.store import StoreUnusable

from controlplane_api.certificate_metrics import CertificatesCollector
from controlplane_api.commands.options import DATABASE_HELP, LogFormatOption, forced_group, use_log_format
from controlplane_api.database import open_database
from controlplane_api.errors import ListenRefused
from controlplane_api.identity.authority import SqlAuthority
from controlplane_api.identity.ca_files import CERTIFICATE_FILE
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway import memory
from gateway.config import GatewayConfig, TlsFiles
from gateway.errors import LandingUnusable
from gateway.identity import Authority
from gateway.metrics import GatewayMetrics, serving_metrics
from gateway.registry import Registry
from gateway.server import serve

COMPARE_HELP = (
    "Compare large tables behind a gap of their source's log, and read again what differs, in place of whole dumps."
)
CA_HELP = "Folder of the CA that certifies agents: made at the first start, or with your own ca.pem and ca.key in it."

_STARTING = {"start": "the gateway opens its database"}

app = forced_group("Take agents' changes in and land them.")


@app.command()
def run(
    database: Annotated[str, typer.Option(envvar="MENURA_DATABASE", help=DATABASE_HELP)],
    landing: Annotated[str, typer.Option(help="Folder or URL of the log and data files, one for all gateways.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; beyond loopback only with TLS.")] = "127.0.0.1:7070",
    storage_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="How to reach a landing that is a URL; repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Unique among live gateways; default: from host and landing.")] = "",
    ca: Annotated[Path | None, typer.Option(help=CA_HELP)] = None,
    enrol_listen: Annotated[
        str, typer.Option(help="HOST:PORT on which agents enrol, with --ca; default: the port after --listen.")
    ] = "",
    certificate_hours: Annotated[
        float, typer.Option(min=0.001, max=24 * 365, help="Life of a certificate; a third of it on, it is renewed.")
    ] = 7 * 24,
    replace_ca: Annotated[bool, typer.Option(help="Take another CA than before; every agent enrols again.")] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file of a certificate of your own CA.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="PEM file of the CA of agents' certificates.")] = None,
    cut_interval_ms: Annotated[int, typer.Option(min=10, help="A cut ends after this time...")] = 500,
    cut_bytes: Annotated[int, typer.Option(min=1 << 16, help="...or this size, at a transaction's end.")] = 16 << 20,
    credit_window_bytes: Annotated[
        int, typer.Option(min=1 << 20, help="Bytes of a source that may be on the way or in memory here.")
    ] = 64 << 20,
    dump_credit_window_bytes: Annotated[int, typer.Option(min=1 << 20, help="The same of rows that dumps read.")] = 32
    << 20,
    stream_window_bytes: Annotated[
        int,
        typer.Option(min=64 << 10, max=16 << 20, help="Bytes of a stream on the way; more for agents far away."),
    ] = 64 << 10,
    keep_landing_hours: Annotated[
        int,
        typer.Option(min=0, help="Landed files that every lake has are removed after so many hours; 0: never."),
    ] = 24,
    compare_behind_gaps: Annotated[bool, typer.Option("--compare-behind-gaps", help=COMPARE_HELP)] = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics, /livez and /readyz there.")
    ] = None,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With a token that /metrics needs, which it does wherever other machines reach the port.",
        ),
    ] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Serve agents until SIGTERM or Ctrl-C."""
    use_log_format(log_format)
    use_storage(storage_option or [])
    config = GatewayConfig(
        landing=landing,
        name=name or _default_name(landing),
        listen=listen,
        tls=_tls(tls_certificate, tls_key, tls_client_ca),
        enrol_listen="" if ca is None else enrol_listen or port_after(listen),
        cut_interval_ms=cut_interval_ms,
        cut_bytes=cut_bytes,
        credit_window_bytes=credit_window_bytes,
        dump_credit_window_bytes=dump_credit_window_bytes,
        stream_window_bytes=stream_window_bytes,
        keep_landing_hours=keep_landing_hours,
    )
    memory.settle()
    use_hard_limit()
    counted, pulse, readiness = GatewayMetrics(), Pulse("the gateway's event loop"), Readiness(_STARTING)
    with ExitStack() as ends:
        ends.callback(os.umask, os.umask(0o077))  # what lands has rows: its user alone reads it
        if metrics is not None:
            folders = {"landing": Path(absolute(landing))} if is_local(absolute(landing)) else {}
            certificates = {} if tls_certificate is None else {"gateway": tls_certificate}
            certificates |= {} if ca is None else {"ca": ca / CERTIFICATE_FILE}
            further = [VolumesCollector(folders), CertificatesCollector(certificates)]
            health = Health(lifeless=pulse.stopped, unready=readiness.reasons)
            shown = ends.enter_context(serving_metrics(metrics, counted, health, further, metrics_token_file))
            typer.echo(f"metrics on http://{shown}/metrics")
        opened = ends.enter_context(closing(open_database(database)))
        authority = None
        if ca is not None:
            authority = SqlAuthority(opened, ca, timedelta(hours=certificate_hours), replace=replace_ca)
        registry = SqlRegistry(opened, compares_behind_gaps=compare_behind_gaps)
        asyncio.run(_serve(config, registry, counted, authority, pulse, readiness))


async def _serve(
    config: GatewayConfig,
    registry: Registry,
    metrics: GatewayMetrics,
    authority: Authority | None,
    pulse: Pulse,
    readiness: Readiness,
) -> None:
    stop = asyncio.Event()
    beating = asyncio.create_task(pulse.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ready = lambda address: typer.echo(f"gateway listens on {address}")  # noqa: E731
    await serve(config, registry, stop, ready, metrics, authority, readiness)
    beating.cancel()


def use_storage(words: list[str]) -> None:
    """From now on for this process. Raises `LandingUnusable`."""
    try:
        use(parse(words))
    except StoreUnusable as refused:
        raise LandingUnusable(
            "reading the storage options",
            str(refused),
            remedy="Correct --storage-option; docs/production.md names the keys",
        ) from refused


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None or client_ca is None:
        raise ListenRefused(
            "reading the gateway's TLS settings",
            "its certificate, the key, and the CA of agents come together, and one is missing",
            remedy="Give --tls-certificate, --tls-key and --tls-client-ca, or --ca FOLDER alone.",
        )
    return TlsFiles(certificate, key, client_ca)


def port_after(listen: str) -> str:
    """Where agents enrol unless told otherwise; any free port after port 0. A wrong address is said of `listen`."""
    host, _, port = listen.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else 0
    return f"{host or 'localhost'}:{number + ENROLMENT_PORT_OFFSET if 0 < number < 65535 else 0}"


def _default_name(landing: str) -> str:
    """The same after a restart, so that it takes its own leases up again at once; another for another landing."""
    address = absolute(landing)
    return local_name(str(Path(address).resolve()) if is_local(address) else address)
