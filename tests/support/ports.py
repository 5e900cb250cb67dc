"""Ports for programs that a test starts a while later, beside other tests."""

import contextlib
import random
import socket
from pathlib import Path


def quiet_port() -> int:
    return quiet_ports(1)[0]


def quiet_ports(count: int) -> list[int]:
    """Free ports that no program is given by chance while nobody listens on them."""
    lowest_by_chance = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    with contextlib.ExitStack() as stack:  # held open together, so that no two are the same
        for port in random.sample(range(10_000, lowest_by_chance), 10 * count):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                ports.append(port)
    return ports[:count]
