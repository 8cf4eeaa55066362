"""From which address a request comes: its connection's, or what a trusted proxy says of it.

Comes in: the networks of proxies, and the scope of a request, in which uvicorn has put the last entry of
X-Forwarded-For that is no trusted proxy's, if the connection is of one. Goes out: an address, for rates and the log.
"""

import ipaddress

from starlette.types import Scope

from controlplane_api.errors import ListenRefused

#: what a proxy calls an address, and is none
UNKNOWN = "unknown"


def trusted_networks(text: str) -> tuple[str, ...]:
    """Of addresses and networks with commas between them. Raises `ListenRefused`.

    >>> trusted_networks("192.0.2.7, 2001:db8::/32")
    ('192.0.2.7/32', '2001:db8::/32')
    """
    return tuple(str(_network(entry.strip())) for entry in text.split(",")) if text.strip() else ()


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    doing, remedy = (
        "reading --trusted-proxies",
        "Give addresses or networks of the proxies alone: 10.0.0.7,10.1.0.0/24.",
    )
    try:
        network = ipaddress.ip_network(entry)
    except ValueError as invalid:
        raise ListenRefused(doing, str(invalid), remedy=remedy) from invalid
    if network.prefixlen == 0:
        raise ListenRefused(doing, f"{entry} is every address, so that anybody could say who he is", remedy=remedy)
    return network


def client_address(scope: Scope) -> str:
    """
    >>> client_address({"client": ("192.0.2.7", 1)}), client_address({"client": ("-", 0)}), client_address({})
    ('192.0.2.7', 'unknown', 'unknown')
    """
    host = scope["client"][0] if scope.get("client") else ""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return UNKNOWN
