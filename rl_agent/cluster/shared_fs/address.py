"""Finds the address and the port at which other nodes reach this one.

`cluster.interface` is null (use the address of the route to the outside), the name of a network interface, or
an address or host name that is used unchanged.
"""

import ipaddress
import socket

import psutil

from rl_agent.config.plan import ClusterConfig
from rl_agent.errors import ConfigError

LOOPBACK = "127.0.0.1"
_OUTSIDE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): routed like any other, belongs to nobody."""


def advertised_address(cluster: ClusterConfig) -> str:
    """Return the address at which other nodes reach this one.

    Raises ConfigError for a `cluster.interface` that names neither an interface nor a host.
    """
    if cluster.interface is None:
        return outward_address()
    if (name := interface_name(cluster)) is not None:
        return _ipv4_of(name)
    try:
        socket.getaddrinfo(cluster.interface, None)
    except OSError as error:
        raise ConfigError(
            f"cluster.interface={cluster.interface}: is neither an interface of this host "
            f"({', '.join(sorted(psutil.net_if_addrs()))}), nor an address, nor a known host name"
        ) from error
    return cluster.interface


def outward_address() -> str:
    """Return this host's address on the route to the outside, or that of its name, or loopback."""
    return _address_on_default_route() or _address_of_own_name() or LOOPBACK


def interface_name(cluster: ClusterConfig) -> str | None:
    """Return `cluster.interface` if it names a network interface of this host, else None."""
    name = cluster.interface
    return name if name is not None and name in psutil.net_if_addrs() else None


def free_port(host: str = "") -> int:
    """Find a port that no program listens on now; nothing reserves it, so use it soon."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def address_towards(host: str, port: int) -> str:
    """Return this host's address on the route to another host. Raises OSError.

    Connecting a datagram socket sends nothing.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        own_address: str = probe.getsockname()[0]
        return own_address


def _address_on_default_route() -> str | None:
    try:
        return address_towards(*_OUTSIDE)
    except OSError:  # no route: a machine alone, or a cluster without a way out
        return None


def _address_of_own_name() -> str | None:
    """Return the address of this host's name, as clusters without a route to the outside set it."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if ipaddress.ip_address(address).is_loopback else address


def _ipv4_of(interface: str) -> str:
    addresses = [card.address for card in psutil.net_if_addrs()[interface] if card.family == socket.AF_INET]
    if not addresses:
        raise ConfigError(f"cluster.interface={interface}: has no IPv4 address")
    return addresses[0]
