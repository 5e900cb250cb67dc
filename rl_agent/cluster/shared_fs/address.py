"""The address and the port at which other nodes reach this one.

`cluster.interface` is null (the address of the route to the outside), the name of a network interface, or
an address or host name that is used as it is.
"""

import ipaddress
import socket
from typing import Protocol

import psutil

from rl_agent.errors import ConfigError

LOOPBACK = "127.0.0.1"
_OUTSIDE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): routed like any other, belongs to nobody."""


class Reachable(Protocol):
    """What `config.ClusterConfig` says about addresses."""

    @property
    def interface(self) -> str | None: ...


def advertised_address(cluster: Reachable) -> str:
    """The address that other nodes reach this one by.

    Raises ConfigError for a `cluster.interface` that names neither an interface nor a host.
    """
    if cluster.interface is None:
        return _outward_address() or _address_of_own_name() or LOOPBACK
    if (name := interface_name(cluster)) is not None:
        return _ipv4_of(name)
    if _is_address(cluster.interface) or _is_known_host(cluster.interface):
        return cluster.interface
    raise ConfigError(
        f"cluster.interface={cluster.interface}: is neither an interface of this host "
        f"({', '.join(sorted(psutil.net_if_addrs()))}), nor an address, nor a known host name"
    )


def interface_name(cluster: Reachable) -> str | None:
    """`cluster.interface` where it names a network interface of this host."""
    name = cluster.interface
    return name if name is not None and name in psutil.net_if_addrs() else None


def free_port(host: str = "") -> int:
    """A port that nobody listens on now. Whoever wants it takes it soon: nothing reserves it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def address_towards(host: str, port: int) -> str:
    """This host's end of the route to another; connecting a datagram socket sends nothing. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
        return found


def _outward_address() -> str | None:
    try:
        return address_towards(*_OUTSIDE)
    except OSError:  # no route: a machine alone, or a cluster without a way out
        return None


def _address_of_own_name() -> str | None:
    """What this host's name stands for, as clusters without a route to the outside set it."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if ipaddress.ip_address(address).is_loopback else address


def _ipv4_of(interface: str) -> str:
    found = [one.address for one in psutil.net_if_addrs()[interface] if one.family == socket.AF_INET]
    if not found:
        raise ConfigError(f"cluster.interface={interface}: has no IPv4 address")
    return found[0]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_known_host(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
