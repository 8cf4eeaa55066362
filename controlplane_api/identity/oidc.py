"""Logging people in by OpenID Connect: the authorization code flow with PKCE.

::

    begin      -> the provider's page, and an `Attempt` that the browser keeps in a cookie
    finish     <- the code that the provider's page sent the browser back with, and that Attempt
               -> the ID token's claims, once its signature, issuer, audience, nonce and times are right

Comes in: settings, codes. Goes out: who it is and what he may. Nothing is durable here: an attempt is the browser's,
and a kill leaves a login to begin again. What the provider says is bounded and checked: its discovery document names
the issuer of the settings, its keys are asked for again when a token names one that is not known, though not more often
than each `KEYS_SECONDS`. No proxy and no redirect is followed. No error has a code, a token or a secret.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core.claims import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from controlplane_api.errors import LoginProviderAway, LoginRefused
from controlplane_api.identity.callers import Caller
from controlplane_api.identity.oidc_settings import OidcSettings

REQUEST_SECONDS = 10.0
MAX_ANSWER_BYTES = 1 << 20
#: of a discovery document, and between two looks at keys
DISCOVERY_SECONDS, KEYS_SECONDS = 600.0, 10.0
LEEWAY_SECONDS = 60
#: of what the provider says of a person; OpenID Connect bounds a subject
MAX_NAME_CHARS, MAX_SUBJECT_CHARS = 100, 255
#: by a public key alone: never "none", never a key that both sides have
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_DOING = "logging in with the identity provider"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What only the browser that began it has. It is in its cookie, which no page can read."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    def reveal(self) -> str:
        return ".".join((self.state, self.nonce, self.verifier))

    @classmethod
    def parse(cls, text: str) -> "Attempt | None":
        """
        >>> Attempt.parse("a.b.c") == Attempt("a", "b", "c"), Attempt.parse("a.b"), Attempt.parse("a..c")
        (True, None, None)
        """
        parts = text.split(".")
        return cls(*parts) if len(parts) == 3 and all(parts) else None


class Provider:
    """One identity provider; used from one event loop."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._known: dict[str, str] = {}
        self._known_at = 0.0
        self._keys = KeySet([])
        self._keys_at = 0.0

    async def begin(self, redirect_uri: str) -> tuple[str, Attempt]:
        """Where the browser goes. Raises `LoginProviderAway`."""
        known = await self._discover()
        attempt = Attempt(*(secrets.token_urlsafe(size) for size in (24, 24, 48)))
        page: str = prepare_grant_uri(
            known["authorization_endpoint"],
            client_id=self.settings.client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope=" ".join(self.settings.scopes),
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
        )
        return page, attempt

    async def finish(self, code: str, attempt: Attempt, redirect_uri: str) -> Caller:
        """Who has logged in. Raises `LoginRefused`, `LoginProviderAway`."""
        claims = await self._claims(await self._id_token(code, attempt, redirect_uri), attempt)
        grants = self.settings.grants_of(claims)
        subject = str(claims["sub"])
        name = claims.get(self.settings.name_claim, subject)
        if not 0 < len(subject) <= MAX_SUBJECT_CHARS:
            raise _refused("its ID token names nobody", "Log in again.")
        if not grants:
            raise _refused("none of this person's groups has a role", "Have an administrator give one of them a role.")
        # The subject always stands there whole: a person may choose the name.
        shown = subject if name == subject else f"{str(name)[:MAX_NAME_CHARS]} ({subject})"
        return Caller(f"person {shown}", grants)

    async def _id_token(self, code: str, attempt: Attempt, redirect_uri: str) -> str:
        settings, known = self.settings, await self._discover()
        body = prepare_token_request(
            "authorization_code", "", redirect_uri=redirect_uri, code=code, code_verifier=attempt.verifier
        )
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        method = "client_secret_basic" if settings.client_secret else "none"
        auth = ClientAuth(settings.client_id, settings.client_secret, method)
        uri, headers, body = auth.prepare("POST", known["token_endpoint"], headers, body)
        status, answer = await _ask("POST", uri, headers, body)
        if status in (400, 401, 403):
            raise _refused("it takes the code for none of ours, or has seen it before", "Log in again.")
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            raise _away(f"it answered {status} without an ID token")
        return token

    async def _claims(self, token: str, attempt: Attempt) -> dict[str, Any]:
        settings = self.settings
        options = {
            "iss": {"essential": True, "value": settings.issuer},
            "aud": {"essential": True, "value": settings.client_id},
        }
        params = {"nonce": attempt.nonce, "client_id": settings.client_id}
        try:
            decoded = await self._decode(token)
            claims = CodeIDToken(decoded.claims, decoded.header, options, params)
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError) as wrong:
            raise _refused(f"its ID token is not for us ({type(wrong).__name__})", "Log in again.") from None
        return dict(claims)

    async def _decode(self, token: str) -> jwt.Token:
        """By the keys that are known; once more by those of now, where that is not enough."""
        try:
            return jwt.decode(token, self._keys, algorithms=list(ALGORITHMS))
        except (JoseError, ValueError):
            if time.monotonic() - self._keys_at < KEYS_SECONDS and self._keys_at:
                raise
        known = await self._discover()
        status, answer = await _ask("GET", known["jwks_uri"])
        if status != 200:
            raise _away(f"it answered {status} for its keys")
        try:
            self._keys = KeySet.import_key_set(answer)  # type: ignore[arg-type]
        except (JoseError, ValueError, TypeError, KeyError) as unreadable:
            raise _away(f"its keys can't be read ({type(unreadable).__name__})") from unreadable
        self._keys_at = time.monotonic()
        return jwt.decode(token, self._keys, algorithms=list(ALGORITHMS))

    async def _discover(self) -> Mapping[str, str]:
        if self._known and time.monotonic() - self._known_at < DISCOVERY_SECONDS:
            return self._known
        issuer = self.settings.issuer
        status, answer = await _ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if status != 200:
            raise _away(f"it answered {status} for its discovery document")
        if answer.get("issuer") != issuer:
            raise _away("its discovery document names another issuer")
        known = {name: str(answer.get(name, "")) for name in _ENDPOINTS}
        if any(urlsplit(uri).scheme not in ("https", urlsplit(issuer).scheme) for uri in known.values()):
            raise _away("its discovery document lacks an endpoint, or has one without TLS")
        self._known, self._known_at = known, time.monotonic()
        return known


async def _ask(
    method: str, uri: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object; empty for any other body."""
    try:
        async with (
            httpx.AsyncClient(timeout=REQUEST_SECONDS, follow_redirects=False, trust_env=False) as client,
            client.stream(method, uri, headers=headers, content=body) as answer,
        ):
            content = b""
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    raise _away(f"it answers more than {MAX_ANSWER_BYTES} bytes")
            found = httpx.Response(answer.status_code, content=content).json() if content else {}
    except (httpx.HTTPError, httpx.InvalidURL) as failure:
        raise _away(f"it can't be reached ({type(failure).__name__})") from failure
    except (ValueError, RecursionError):
        return answer.status_code, {}
    return answer.status_code, found if isinstance(found, dict) else {}


def _refused(found: str, remedy: str) -> LoginRefused:
    return LoginRefused(_DOING, found, data="Nobody was logged in.", remedy=remedy)


def _away(found: str) -> LoginProviderAway:
    return LoginProviderAway(
        _DOING, found, data="Nobody was logged in.", remedy="Check the provider, and issuer in the file of --oidc."
    )
