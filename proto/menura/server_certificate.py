"""A server's certificate, taken anew while it runs.

Comes in: two files in PEM, which an operator or his tool replaces. Goes out: a context whose next handshakes use what
is there. Each `LOOK_SECONDS` their times and sizes are compared; new files are tried in a context of their own first,
so that half a pair, or one that does not fit, leaves the former in use, is logged once, and is tried again when they
change.
"""

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from menura.errors import MenuraError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
#: of TLS 1.2; those of 1.3 are all good
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path
    key: Path

    def seen(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when one of them does. Raises OSError."""
        stats = (file.stat() for file in (self.certificate, self.key))
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def server_context(files: TlsFiles, refused: type[MenuraError]) -> ssl.SSLContext:
    """Raises `refused` where the files are no certificate with its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as unusable:
        raise refused(
            "reading the server's certificate",
            f"{files.certificate} and {files.key} are no certificate with its key ({type(unusable).__name__})",
            remedy="Give both in PEM, the key without a password: --tls-certificate and --tls-key.",
        ) from unusable
    return context


def follow(files: TlsFiles, context: ssl.SSLContext, stop: threading.Event) -> threading.Thread:
    """Keep the context's certificate that of the files, until `stop` is set."""
    thread = threading.Thread(target=_follow, args=(files, context, files.seen(), stop), name="tls", daemon=True)
    thread.start()
    return thread


def _follow(files: TlsFiles, context: ssl.SSLContext, used: object, stop: threading.Event) -> None:
    while not stop.wait(LOOK_SECONDS):
        try:
            seen = files.seen()
        except OSError:
            continue  # between two renames
        if seen == used:
            continue
        used = seen
        try:
            server_context(files, MenuraError)
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (MenuraError, OSError) as unusable:
            logger.error("the new certificate is not used, the former one is: error=%s", unusable)  # noqa: TRY400
        else:
            logger.info("there is a new certificate: file=%s", files.certificate)


def _no_password() -> str:
    """Else OpenSSL asks the terminal."""
    return ""
