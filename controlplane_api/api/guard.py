"""Before every request: from where it may come, and which headers every answer carries; who asks is `gate`'s.

It keeps out what a browser could be tricked into: another site's page (origin check here, JSON only by `only_json`,
which the application asks of each route that writes) and, on loopback, a foreign name that resolves to it (host check);
beyond loopback a browser compares the name with the certificate. It also hands the undecoded path on, so that a '/'
inside a database's or a table's name (%2F) does not end a path segment, and takes HEAD for the GET whose headers it is;
the server sends no body with it.
"""

from urllib.parse import urlsplit

from fastapi import Request
from menura.addresses import names_loopback
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane_api.api.problems import problem_response
from controlplane_api.errors import ControlPlaneError, CrossSiteRefused, RequestInvalid

MAX_BODY_BYTES = 16 << 20
READS = ("GET", "HEAD")
#: of a request's scope: whether only the headers of the answer are wanted
HEAD = "menura.head"
#: int() takes long for very many
MAX_LENGTH_DIGITS = 20
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, public_host: str | None = "") -> None:
        """`public_host`: a HOST[:PORT] under which browsers know it, beside loopback's; None: any."""
        self._app = app
        self._public_host = public_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        refused = self._foreign_host(headers) or _refusal(scope["method"], headers)
        if refused is not None:
            await problem_response(refused)(scope, receive, send_guarded)
            return
        raw_path: bytes = scope["raw_path"]
        head = scope["method"] == "HEAD"
        method = "GET" if head else scope["method"]
        path = raw_path.decode("ascii", "replace")
        await self._app({**scope, "method": method, "path": path, HEAD: head}, receive, send_guarded)

    def _foreign_host(self, headers: Headers) -> ControlPlaneError | None:
        host = headers.get("host", "")
        if self._public_host is None or host == self._public_host or names_loopback(host):
            return None
        return CrossSiteRefused(
            "answering a request",
            "its Host is not a loopback address",
            remedy="Use http://127.0.0.1:PORT or http://localhost:PORT; for another name set --public-url.",
        )


async def only_json(request: Request) -> None:
    """Of routes that write: what a form of another site's page sends is refused."""
    if request.method in READS:
        return
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise CrossSiteRefused(
            "answering a request",
            "its Content-Type is not application/json",
            data="Nothing was changed.",
            remedy="Send a JSON body, {} at the least, with Content-Type: application/json.",
        )


def _refusal(method: str, headers: Headers) -> ControlPlaneError | None:
    if method in READS:
        return None
    origin = headers.get("origin")
    same_origin = origin is None or urlsplit(origin).netloc == headers.get("host", "")
    if not same_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return CrossSiteRefused("answering a request", "it comes from another site's page", data="Nothing was changed.")
    length = headers.get("content-length", "0")
    is_number = length.isascii() and length.isdigit() and len(length) < MAX_LENGTH_DIGITS
    if not is_number or int(length) > MAX_BODY_BYTES or "transfer-encoding" in headers:
        return RequestInvalid(
            "reading a request",
            f"its Content-Length is missing or above {MAX_BODY_BYTES}, or it has a Transfer-Encoding",
            data="Nothing was changed.",
        )
    return None
