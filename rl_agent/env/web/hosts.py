"""Decides which hosts a browser may reach, and how: the sites of this process directly, others by the proxy.

Chromium's own resolver knows the sites alone, by names of their own (`shop.test`) instead of a port that
would differ from run to run. Others have no address there; `socks_proxy` resolves and connects allowed hosts.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_PATTERN = re.compile(
    r"(\*|(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)", re.ASCII
)
_PRIVATE = (
    "localhost", "*.localhost", "127.*", "0.*", "10.*", "192.168.*", "169.254.*", "[*",
    "metadata.google.internal", *(f"172.{n}.*" for n in range(16, 32)),
)  # fmt: skip
"""Names that `*` does not include; the proxy looks at the addresses."""


def check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hosts. Raises ValueError for the first that is not `example.org`, `*.example.org` or `*`."""
    for host in hosts:
        if not _PATTERN.fullmatch(host):
            raise ValueError(f"{host!r} is not a host; write example.org, *.example.org or * for all")
    return hosts


def ways(sites: Mapping[str, int], proxy: int | None) -> tuple[str, ...]:
    """Return Chromium's arguments: `sites` are names that are served here, with their ports.

    Without the port of a proxy nothing else is reached. With one, loopback is not an exception to it.
    """
    rules = [*(f"MAP {name} 127.0.0.1:{port}" for name, port in sites.items()), "MAP * ~NOTFOUND"]
    if proxy is None:
        return (f"--host-resolver-rules={', '.join(rules)}",)
    return (
        f"--host-resolver-rules={', '.join([*rules, 'EXCLUDE 127.0.0.1'])}",  # where the proxy is
        f"--proxy-server=socks5://127.0.0.1:{proxy}",
        f"--proxy-bypass-list={';'.join(['<-loopback>', *sites])}",
    )


def is_allowed(url: str, allowed: Iterable[str], sites: Iterable[str]) -> bool:
    """Tell whether the browser may open an address."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host:
        return False
    return host in sites or is_allowed_host(host, allowed)


def is_allowed_host(host: str, allowed: Iterable[str]) -> bool:
    """Tell whether a host, without a dot at its end, has one of the names."""
    return any(_matches(host, pattern) for pattern in allowed)


def _matches(host: str, pattern: str) -> bool:
    if pattern == "*":
        return not any(_globs(host, private) for private in _PRIVATE) and ":" not in host
    return _globs(host, pattern)


def _globs(host: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(parts), host) is not None
