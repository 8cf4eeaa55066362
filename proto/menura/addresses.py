"""HOST:PORT, as settings have it, and a request's Host."""

import ipaddress
import re

_HOST = re.compile(r"(?P<name>[a-z0-9.]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Whether nobody on another machine reaches it.

    >>> is_loopback("localhost"), is_loopback("[::1]"), is_loopback("0.0.0.0"), is_loopback("gw.example")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_loopback(host: str) -> bool:
    """Of a request's Host: whether the request came to a name of loopback, and not to another that leads there.

    >>> names_loopback("LOCALHOST:7080"), names_loopback("[::1]:80"), names_loopback("evil.example"), names_loopback("")
    (True, True, False, False)
    """
    named = _HOST.fullmatch(host)
    return named is not None and is_loopback(named["name"].lower())
