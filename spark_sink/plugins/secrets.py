"""Secrets of plug-ins and pipes: a file says where one is, never what it is.

Comes in: the value of an option. Goes out: what it refers to, read each time: `env:NAME` an environment variable,
`file:PATH` a file's text without the newline at its end. A secret shows itself nowhere.
"""

import os
import re
from pathlib import Path

MAX_BYTES = 64 << 10
ENVIRONMENT, FILE = "env:", "file:"
#: options whose value is a secret, by their name
_NAMED = re.compile(
    r"(passw(or)?d|passphrase|passcode|secret|token|key\.pem|(jaas|oauthbearer)\.config|(?<!registry_)credentials"
    r"|(api|access|account|private|secret)[._-]?key|(^|[._-])(pass|pwd))$",
    re.IGNORECASE,
)
#: what a URL has before its host, and a connection's text or a query among its settings
_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@|(^|[\s;,?&])(password|passwd|pwd|token|secret)\s*=", re.IGNORECASE)


class SecretMissing(Exception):
    """Says what is wrong, without a secret."""


class Secret(str):
    """What a reference refers to; as a value it is a text, shown it is not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(***)"


def is_reference(value: str) -> bool:
    """
    >>> is_reference("env:PASSWORD"), is_reference("file:/run/secrets/password"), is_reference("hunter2")
    (True, True, False)
    """
    return value.startswith((ENVIRONMENT, FILE))


def wants_reference(name: str, value: str) -> bool:
    """Whether this option has a secret in it that should be a reference.

    >>> wants_reference("sasl.password", "hunter2"), wants_reference("sasl.password", "env:PASSWORD")
    (True, False)
    >>> wants_reference("host", "db.example"), wants_reference("url", "http://me:hunter2@db.example/")
    (False, True)
    >>> [wants_reference(name, "hunter2") for name in ("pwd", "db.pass", "secret_key", "credentials", "bypass")]
    [True, True, True, True, False]
    >>> wants_reference("dsn", "host=db password=hunter2"), wants_reference("registry_credentials", "/etc/registry")
    (True, False)
    """
    return not is_reference(value) and (_NAMED.search(name) is not None or _IN_URL.search(value) is not None)


def resolved(value: str) -> str:
    """What a reference refers to; another value is itself. Raises `SecretMissing`."""
    if isinstance(value, Secret) or not is_reference(value):
        return value
    where = value.partition(":")[2]
    if value.startswith(ENVIRONMENT):
        if (found := os.environ.get(where)) is None:
            raise SecretMissing(f"the environment variable {where} is not set")
        return Secret(found)
    try:
        with Path(where).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise SecretMissing(f"the file {where} is larger than {MAX_BYTES} bytes")
        return Secret(text.decode().removesuffix("\n").removesuffix("\r"))
    except OSError as failure:
        raise SecretMissing(f"the file {where}: {failure.strerror or type(failure).__name__}") from failure
    except UnicodeDecodeError as wrong:
        raise SecretMissing(f"the file {where} is no text in UTF-8") from wrong
