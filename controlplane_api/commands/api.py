"""`menura api run`: REST and dashboard over the control plane's database, in one process.

Whoever asks shows a token or has a session; the first token comes by --admin-token-file, or of another API process over
the same database. On loopback --anonymous lets everybody in who reaches it.
"""

import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer
from menura.addresses import is_loopback
from menura.http_server import server_of
from menura.metric_families import VolumesCollector
from menura.server_certificate import TlsFiles, follow, server_context

from controlplane_api.api.app import Access, check_listen, create_app, parse_listen
from controlplane_api.api.proxies import trusted_networks
from controlplane_api.api.search_service import SearchService
from controlplane_api.certificate_metrics import CertificatesCollector
from controlplane_api.commands.options import DATABASE_HELP, LogFormatOption, forced_group, use_log_format
from controlplane_api.database import open_database
from controlplane_api.errors import ListenRefused
from controlplane_api.identity.admin_token import ensure_admin_token
from controlplane_api.identity.oidc import Provider
from controlplane_api.identity.oidc_settings import read_oidc_settings

app = forced_group("The control plane's REST interface and dashboard.")


@app.command()
def run(
    database: Annotated[str, typer.Option(envvar="MENURA_DATABASE", help=DATABASE_HELP)],
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 for any free one.")] = "127.0.0.1:7080",
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM; beyond loopback with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM. Both files may change while it runs.")] = None,
    public_url: Annotated[str, typer.Option(help="As browsers know it, if not by --listen.")] = "",
    admin_token_file: Annotated[
        Path | None, typer.Option(help="Write a token of an admin of the whole fleet there, mode 0600, if it has none.")
    ] = None,
    oidc: Annotated[Path | None, typer.Option(help="YAML with the identity provider that people log in with.")] = None,
    search: Annotated[str, typer.Option(metavar="URL", help="Of `menura search serve`; without it, no search.")] = "",
    search_token_file: Annotated[Path | None, typer.Option(help="With the token of the search service.")] = None,
    search_ca: Annotated[Path | None, typer.Option(help="PEM; whose certificates the search service may have.")] = None,
    trusted_proxies: Annotated[
        str, typer.Option(metavar="CIDR,...", help="Proxies whose X-Forwarded-For says from where a request comes.")
    ] = "",
    anonymous: Annotated[bool, typer.Option("--anonymous", help="On loopback: ask nobody who he is.")] = False,
    log_format: LogFormatOption = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    use_log_format(log_format)
    tls = _tls(tls_certificate, tls_key)
    check_listen(listen, has_tls=tls is not None, anonymous=anonymous)
    host, port = parse_listen(listen)
    proxies = trusted_networks(trusted_proxies)
    context = None if tls is None else server_context(tls, ListenRefused)
    rows = SearchService(search, search_token_file, search_ca) if search else None
    provider = None if oidc is None else Provider(read_oidc_settings(oidc))
    with ExitStack() as ends:
        opened = ends.enter_context(closing(open_database(database)))
        if admin_token_file is not None:
            ensure_admin_token(opened, admin_token_file)
        listener = ends.enter_context(_listener(host, port))
        shown = f"[{host}]" if ":" in host else host
        url = f"{'http' if tls is None else 'https'}://{shown}:{listener.getsockname()[1]}"
        access = Access(
            public_url=public_url.rstrip("/") or url,
            anonymous=anonymous,
            beyond_loopback=not is_loopback(host),
            provider=provider,
            search=rows,
            host_figures=[
                CertificatesCollector({} if tls_certificate is None else {"api": tls_certificate}),
                VolumesCollector({} if (file := opened.file) is None else {"database": file.parent}),
            ],
        )
        if tls is not None and context is not None:
            stop = threading.Event()
            ends.callback(stop.set)
            follow(tls, context, stop)
        typer.echo(f"API and dashboard on {url}")
        server_of(create_app(opened, access), tls=context, trusted_proxies=proxies).run(sockets=[listener])


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ListenRefused(
            "reading the API's TLS settings",
            "a certificate and its key come together, and one is missing",
            remedy="Give --tls-certificate and --tls-key.",
        )
    return TlsFiles(certificate, key)


def _listener(host: str, port: int) -> socket.socket:
    """Bound before anything else is said, so that an address in use is an error of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as taken:
        raise ListenRefused(
            f"listening on {host}:{port}",
            taken.strerror or str(taken),
            remedy="Stop what listens there, or set --listen to another port.",
        ) from taken
