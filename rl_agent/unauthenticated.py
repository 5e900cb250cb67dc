"""Connections that have shown no token yet: how many there may be, for every server of this project. Pure.

    arrives ─► one of few places: if its network or all have too many, the oldest goes
       └─► shows the token in time: `leave`, and it is the server's own affair

A client shows its token at once, so whoever has waited longest only takes the place away. Where all places
are taken, the network that has most loses one: connections cost only the network that they come from.
"""

import ipaddress
import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")
LOG_EVERY_S = 10.0


class Unauthenticated(Generic[V]):
    """The places of connections without a token. Its owner locks every call, and closes those to drop."""

    def __init__(self, *, at_most: int, at_most_a_network: int) -> None:
        self._at_most = at_most
        self._at_most_a_network = at_most_a_network
        self._networks: dict[V, str] = {}
        """Of each connection, oldest first."""
        self._by_network: dict[str, dict[V, None]] = {}

    def arrive(self, visitor: V, network: str) -> V | None:
        """Take a place; the connection to close for that."""
        crowded = None
        if len(self._by_network.get(network, ())) >= self._at_most_a_network:
            crowded = network
        elif len(self._networks) >= self._at_most:
            crowded = max(self._by_network, key=lambda one: len(self._by_network[one]))
        dropped = None if crowded is None else next(iter(self._by_network[crowded]))
        if dropped is not None:
            self.leave(dropped)
        self._networks[visitor] = network
        self._by_network.setdefault(network, {})[visitor] = None
        return dropped

    def leave(self, visitor: V) -> str | None:
        """Give the place up: the network that had it, None if it was lost before."""
        network = self._networks.pop(visitor, None)
        if network is not None:
            del self._by_network[network][visitor]
            if not self._by_network[network]:
                del self._by_network[network]
        return network


def network_of(address: str) -> str:
    """The one place that connections come from: an IPv4 address, or an IPv6 network of 64 bits."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class RateLimitedLog:
    """Warnings that strangers cause: the first at once, then one in a while, with how many were left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._next_at = float("-inf")
        self._left_out = 0

    def warning(self, text: str) -> None:
        with self._lock:
            now = self._clock()
            if now < self._next_at:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._next_at = now + LOG_EVERY_S
        more = f" ({left_out} more before that were not logged)" if left_out else ""
        self._log.warning("%s%s", text, more)
