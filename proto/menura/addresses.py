"""HOST:PORT, as settings have it."""

import ipaddress


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
