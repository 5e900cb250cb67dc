"""The way of a browser into the web: a SOCKS5 proxy on loopback that looks at addresses, not at names.

    Chromium ─► host and port ─► allowed? ─► resolved here ─► of the public web? ─► that address is connected
                                                                └─ this machine or its network: refused

Every connection outside the sites of this process passes: pages, redirects, frames, scripts, WebSockets. The
address that was looked at is the one that is connected, so a name that resolves differently a moment later
leads nowhere else. A host that is allowed by its own whole name may lie in a private network, as may a
service of this machine that others know by the address of a router: nothing here knows that one.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

import psutil

from rl_agent.env.web.hosts import is_allowed_host

_HELLO_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 20.0
_CHUNK_BYTES = 1 << 16
_DONE, _REFUSED, _UNREACHABLE = 0, 2, 4
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host. Raises OSError."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def is_public(address: str) -> bool:
    """Return whether an address is of the public web: of no private network, and none of this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = _embedded(ip) if isinstance(ip, ipaddress.IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    cards = psutil.net_if_addrs().values()
    own = {card_address.address.partition("%")[0] for card in cards for card_address in card}
    return ip.is_global and not ip.is_multicast and str(ip) not in own


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which the system or a gateway carries what is sent to this one."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class SocksProxy:
    """One a process, on a free port; started with the first browser that may reach the web."""

    def __init__(self, allowed: Sequence[str], resolve: Resolve = resolve_host) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Return the port; starts the proxy if it does not run."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more connections; those that are open end with their browsers."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = None
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                host, port = await _read_request(reader, writer)
            answer = _REFUSED
            try:
                far = await self._connect(host, port)
                answer = _DONE
            except PermissionError:
                pass
            except (OSError, TimeoutError, UnicodeError):
                answer = _UNREACHABLE
            writer.write(bytes((5, answer, 0, 1)) + bytes(6))
            if far is not None:
                await asyncio.gather(_pump(reader, far[1]), _pump(far[0], writer))
        except (OSError, EOFError, TimeoutError, ValueError):  # either side has gone, or speaks no SOCKS
            pass
        finally:
            for stream in (writer, *((far[1],) if far else ())):
                stream.close()

    async def _connect(self, host: str, port: int) -> Streams:
        """Raises PermissionError for what is not allowed, OSError for what cannot be reached."""
        host = host.lower().rstrip(".")
        if not is_allowed_host(host, self._allowed):
            raise PermissionError(host)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            addresses = await self._resolve(host, port)
            if host not in self._allowed:
                addresses = [address for address in addresses if is_public(address)]
                if not addresses:
                    raise PermissionError(host)
            for address in addresses:
                with contextlib.suppress(OSError):
                    return await asyncio.open_connection(address, port)
        raise ConnectionError(host)


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """Read the requested host and port. Raises ValueError unless it is a SOCKS5 request to connect."""
    version, methods = await reader.readexactly(2)
    await reader.readexactly(methods)
    writer.write(bytes((5, 0)))  # no login
    _, command, _, kind = await reader.readexactly(4)
    if (version, command) != (5, 1) or kind not in (1, 3, 4):
        raise ValueError("no request to connect")
    if kind == 3:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("ascii")
    else:
        host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
    return host, int.from_bytes(await reader.readexactly(2))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes to the end of the source, and tell the target that it has come."""
    while content := await source.read(_CHUNK_BYTES):
        target.write(content)
        await target.drain()
    target.write_eof()
