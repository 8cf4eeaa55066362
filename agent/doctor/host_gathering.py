"""Asks this host, and the way to its gateway, what `host` judges. Sends nothing but a TLS greeting; changes nothing."""

import os
import re
import resource
import socket
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from cryptography import x509
from menura.addresses import is_loopback
from menura.errors import MenuraError
from menura.host_facts import available_memory_bytes, clock_is_synchronised, existing, free_bytes

from agent.doctor.host import HostFacts
from agent.errors import PolicyUnusable
from agent.identity import CredentialFiles, Credentials
from agent.runtime.state_folder import state_folder_of
from agent.runtime.upgrade_files import UpgradePlaces
from agent.settings import AgentConfig
from agent.veto.policy_file import read_policy

TIMEOUT_SECONDS = 8.0
_PASSWORD = re.compile(rb"^\s*[^#\n]*\bpassword\s*:", re.MULTILINE)


def gather(path: Path, config: AgentConfig, api: str) -> HostFacts:
    host, _, port = config.gateway.address.rpartition(":")
    folder = state_folder_of(config.state_folder, config.agent, os.environ)
    name_error, error = _dialled(host.strip("[]"), int(port))
    identity_error, credentials = _credentials(config.gateway.tls)
    handshake_error, shown = "", None
    if credentials is not None and not name_error and not error:
        handshake_error, shown = _handshake(host.strip("[]"), int(port), credentials)
    policy_error, policy_fix = _policy(config.policy)
    places = UpgradePlaces.of(folder, os.environ)
    result = places.last_result() if places.packaged_as() else None
    own = credentials.certificate if credentials is not None else None
    certificate = None if own is None else x509.load_pem_x509_certificate(own)
    now = datetime.now(UTC)
    return HostFacts(
        config=str(path),
        config_mode=path.stat().st_mode & 0o777,
        has_passwords=_PASSWORD.search(path.read_bytes()) is not None,
        state_folder=str(folder),
        state_error=_write_error(folder),
        state_mode=_mode(folder),
        state_free_bytes=free_bytes(folder),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_bytes=available_memory_bytes(),
        clock_is_synchronised=clock_is_synchronised(),
        gateway=config.gateway.address,
        gateway_name_error=name_error,
        gateway_error=error,
        gateway_is_this_host=is_loopback(host),
        is_encrypted=config.gateway.tls is not None,
        handshake_error=handshake_error,
        gateway_certificate_seconds=None if shown is None else int((shown.not_valid_after_utc - now).total_seconds()),
        certificate_seconds=None
        if certificate is None
        else int((certificate.not_valid_after_utc - now).total_seconds()),
        certificate_age_seconds=None
        if certificate is None
        else int((now - certificate.not_valid_before_utc).total_seconds()),
        identity_error=identity_error,
        api_skew_us=_api_skew_us(api) if api else None,
        policy_error=policy_error,
        policy_fix=policy_fix,
        user=str(os.getuid()),
        upgrades=places.described() if places.packaged_as() else "",
        upgrade_remedy="" if result is None else result.remedy,
    )


def _dialled(host: str, port: int) -> tuple[str, str]:
    """Why the name has no address, and why nobody answers."""
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as unknown:
        return unknown.strerror or type(unknown).__name__, ""
    try:
        socket.create_connection((host, port), TIMEOUT_SECONDS).close()
    except OSError as refused:
        return "", refused.strerror or type(refused).__name__
    return "", ""


def _policy(path: Path | None) -> tuple[str, str]:
    """Why the host's policy can't be used, and what mends it."""
    try:
        read_policy(path)
    except PolicyUnusable as unusable:
        return unusable.found, unusable.remedy
    return "", ""


def _credentials(files: CredentialFiles | None) -> tuple[str, Credentials | None]:
    if files is None:
        return "", None
    try:
        return "", files.read()
    except MenuraError as unusable:
        return unusable.found, None


def _handshake(host: str, port: int, credentials: Credentials) -> tuple[str, x509.Certificate | None]:
    """Why it fails, and the gateway's certificate. The agent's own is not shown: that is for its streams."""
    trusted = None if credentials.ca is None else credentials.ca.decode("ascii")
    context = ssl.create_default_context(cadata=trusted)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), TIMEOUT_SECONDS) as dialled,
            context.wrap_socket(dialled, server_hostname=credentials.server_name or host) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
    except ssl.SSLError as refused:
        return f"the TLS handshake failed: {getattr(refused, 'verify_message', '') or refused.reason}", None
    except OSError as refused:
        return f"the TLS handshake failed: {refused.strerror or type(refused).__name__}", None
    return "", None if shown is None else x509.load_der_x509_certificate(shown)


def _mode(folder: Path) -> int | None:
    with suppress(OSError):
        return folder.stat().st_mode & 0o777
    return None


def _write_error(folder: Path) -> str:
    """Of the folder, or of the nearest one above it that is there."""
    there = existing(folder)
    if not os.access(there, os.W_OK | os.X_OK):
        return f"this user may not write to {there}"
    return "" if there.is_dir() else f"{there} is no folder"


def _api_skew_us(api: str) -> int | None:
    """Its answers say their second; whatever the answer is."""
    before = time.time()
    try:
        with urlopen(api, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  (of the command line)
            said = answer.headers.get("date")
    except HTTPError as answered:
        said = answered.headers.get("date")
    except (URLError, OSError, ValueError):
        return None
    try:
        return int((parsedate_to_datetime(said).timestamp() + 0.5 - (before + time.time()) / 2) * 1e6)
    except (TypeError, ValueError):
        return None
