"""Addresses of stores: a path of this machine, or a URL."""

from pathlib import Path
from urllib.parse import urlsplit

#: other words for a scheme
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def is_local(url: str) -> bool:
    """Whether an address is a folder of this machine.

    >>> is_local("/srv/landing"), is_local("file:///srv/landing"), is_local("s3://bucket/landing")
    (True, True, False)
    """
    return "://" not in url or urlsplit(url).scheme == "file"


def absolute(url: str) -> str:
    """An address that means the same in every process: a path from the root, or a URL without a '/' at its end.

    >>> absolute("file:///srv/lake/"), absolute("s3a://bucket/lake/")
    ('/srv/lake', 's3://bucket/lake')
    """
    if not is_local(url):
        scheme, _, rest = url.rstrip("/").partition("://")
        return f"{ALIASES.get(scheme, scheme)}://{rest}"
    return str(Path(urlsplit(url).path if "://" in url else url).absolute())
