"""Storage options: how a process reaches stores, in one object for landing, lake and checkpoint.

Comes in: KEY=VALUE of the command line, and the environment variables that the stores' own clients know; the command
line counts more. Keys are those of the object_store crate, in small letters, e.g. `aws_endpoint`; Delta's readers and
writers take the same. A value that is secret is not written there: `env:NAME` or `file:PATH` says where it stands, and
it is read anew whenever something is opened, so that a file may be replaced. Nothing here is durable.

Options belong to a process, as its environment does (`use`, `current`). Tasks on other machines get those of the driver
with them, secrets included (`carried`): what carries them must not be shown. `repr` shows no secret.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from menura.stores.address import is_local
from menura.stores.store import StoreUnusable

#: what a client of a store reads of its environment, and shall reach executors too
ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ALLOW_HTTP",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
)
PROVIDERS = ("aws", "google", "azure")
#: of the HTTP client, whichever the store
CLIENT_KEYS = frozenset(
    {"allow_http", "connect_timeout", "pool_max_idle_per_host", "proxy_url", "timeout", "user_agent"}
)
#: of how often a request is tried again
RETRY_KEYS = frozenset({"max_retries", "retry_timeout"})
MAX_RETRIES = 3
RETRY_TIMEOUT_SECONDS = 10
#: of Hadoop's file systems
HADOOP_PREFIXES = ("dfs.", "fs.", "hadoop.")
#: a key with one of these words has a secret value, whatever stands behind the word: Hadoop's end in an account's name
_SECRET_WORDS = frozenset({"key", "password", "sas", "secret", "token"})
#: but not where the whole ends so
_PLAIN_ENDS = ("_key_id", "_enabled", "_file", "_url")
_USER_IN_URL = re.compile(r"://[^/?#]*@")
REFERENCES = ("env:", "file:")
MAX_SECRET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret stands, or, on its way to a task, the secret itself."""

    reference: str
    value: str = field(default="", repr=False)

    def read(self) -> str:
        """Raises `StoreUnusable` where it is not there."""
        if self.value:
            return self.value
        kind, _, place = self.reference.partition(":")
        if kind == "env":
            found = os.environ.get(place, "")
        else:
            try:
                found = Path(place).read_text()[:MAX_SECRET_BYTES].strip()
            except (OSError, UnicodeError) as unreadable:
                raise StoreUnusable(f"{self.reference} can't be read: {type(unreadable).__name__}") from unreadable
        if not found:
            raise StoreUnusable(f"{self.reference} holds nothing")
        return found


@dataclass(frozen=True, slots=True)
class StorageOptions:
    entries: tuple[tuple[str, str | Secret], ...] = ()

    def values(self) -> dict[str, str]:
        """By key, secrets read. Raises `StoreUnusable`."""
        return {key: value.read() if isinstance(value, Secret) else value for key, value in self.entries}

    def carried(self) -> "StorageOptions":
        """The same with the secrets themselves, for tasks on other machines. Raises `StoreUnusable`."""
        return StorageOptions(
            tuple(
                (key, Secret(value.reference, value.read()) if isinstance(value, Secret) else value)
                for key, value in self.entries
            )
        )

    def words(self) -> list[str]:
        """As `parse` takes them: without secrets.

        >>> parse(["aws_region=eu-central-1", "aws_secret_access_key=env:S3_SECRET"], {}).words()
        ['aws_region=eu-central-1', 'aws_secret_access_key=env:S3_SECRET']
        """
        return [f"{key}={value.reference if isinstance(value, Secret) else value}" for key, value in self.entries]


def parse(words: Iterable[str], environment: Mapping[str, str] | None = None) -> StorageOptions:
    """Options of KEY=VALUE, and of the environment. Raises `StoreUnusable`.

    >>> parse(["aws_secret_access_key=hunter2"], {})
    Traceback (most recent call last):
    menura.stores.store.StoreUnusable: aws_secret_access_key is a secret: give env:NAME or file:PATH, where it stands
    """
    entries: dict[str, str | Secret] = {}
    held = os.environ if environment is None else environment
    for name in ENVIRONMENT:
        if held.get(name):
            key = name.lower()
            is_hidden = is_secret(key) or _USER_IN_URL.search(held[name])
            entries[key] = Secret(f"env:{name}") if is_hidden else held[name]
    for word in words:
        key, separator, value = word.partition("=")
        key = key if key.startswith(HADOOP_PREFIXES) else key.strip().lower()
        if not separator or not key or not value:
            raise StoreUnusable(f"{key or 'an option'} has no value: give KEY=VALUE")
        _check_key(key)
        is_reference = value.startswith(REFERENCES)
        if not is_reference and (is_secret(key) or _USER_IN_URL.search(value)):
            raise StoreUnusable(f"{key} is a secret: give env:NAME or file:PATH, where it stands")
        entries[key] = Secret(value) if is_secret(key) or (is_reference and key == "proxy_url") else value
    return StorageOptions(tuple(entries.items()))


def is_secret(key: str) -> bool:
    """Whether a key's value must not be shown.

    >>> [is_secret(key) for key in ("aws_access_key_id", "aws_secret_access_key", "azure_storage_sas_token")]
    [False, True, True]
    """
    return not key.endswith(_PLAIN_ENDS) and not _SECRET_WORDS.isdisjoint(re.split(r"[._-]", key.lower()))


def _check_key(key: str) -> None:
    known = key in CLIENT_KEYS | RETRY_KEYS or key.startswith((*HADOOP_PREFIXES, *(f"{name}_" for name in PROVIDERS)))
    if not known:
        raise StoreUnusable(
            f"{key} is no storage option: keys begin with aws_, google_, azure_ or, of Hadoop, with dfs., fs. or"
            f" hadoop.; or are {', '.join(sorted(CLIENT_KEYS | RETRY_KEYS))}"
        )


class _Used:
    """What this process uses; without a word from anybody its environment."""

    options: StorageOptions | None = None


def use(options: StorageOptions) -> None:
    """From now on stores of this process are opened with these."""
    _Used.options = options


def current() -> StorageOptions:
    if _Used.options is None:
        _Used.options = parse(())
    return _Used.options


#: of the object_store crate, of which each scheme is
PROVIDER_OF = {"s3": "aws", "gs": "google", "az": "azure", "azure": "azure", "abfs": "azure", "abfss": "azure"}


def delta_options(url: str) -> dict[str, str] | None:
    """What delta-rs is told of a table's address; None for a folder. Raises `StoreUnusable`."""
    if is_local(url):
        return None
    scheme = url.partition("://")[0]
    prefix = f"{PROVIDER_OF[scheme]}_" if scheme in PROVIDER_OF else HADOOP_PREFIXES
    keys = CLIENT_KEYS | RETRY_KEYS
    given = {key: value for key, value in current().values().items() if key.startswith(prefix) or key in keys}
    given.setdefault("max_retries", str(MAX_RETRIES))
    given["retry_timeout"] = f"{given.get('retry_timeout', RETRY_TIMEOUT_SECONDS)}".removesuffix("s") + "s"
    return given
