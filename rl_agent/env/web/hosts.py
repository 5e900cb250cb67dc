"""Decides which hosts a browser may reach, as rules of Chromium's own resolver.

Every connection of the browser passes its resolver: pages, redirects, frames, scripts, WebSockets. A host
that the rules refuse has no address, and the sites of this process have names of their own (`shop.test`)
instead of a port that would differ from run to run.
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
"""What `*` does not include: this machine, its network, and what a cloud tells its machines."""


def check_hosts(hosts: Iterable[str]) -> None:
    """Raises ValueError for the first that is not `example.org`, `*.example.org` or `*`."""
    for host in hosts:
        if not _PATTERN.fullmatch(host):
            raise ValueError(
                f"allowed_hosts: {host!r} is no host; write example.org, *.example.org or * for all"
            )


def resolver_rules(allowed: Iterable[str], sites: Mapping[str, int]) -> str:
    """Return Chromium's `--host-resolver-rules`; `sites` are names that are served here, with their ports."""
    own = [f"MAP {name} 127.0.0.1:{port}" for name, port in sites.items()]
    allowed = tuple(allowed)
    if "*" in allowed:
        return ", ".join([*own, *(f"MAP {pattern} ~NOTFOUND" for pattern in _PRIVATE)])
    return ", ".join([*own, "MAP * ~NOTFOUND", *(f"EXCLUDE {pattern}" for pattern in allowed)])


def is_allowed(url: str, allowed: Iterable[str], sites: Iterable[str]) -> bool:
    """Tell whether the browser may open an address."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host:
        return False
    return host in sites or any(_matches(host, pattern) for pattern in allowed)


def _matches(host: str, pattern: str) -> bool:
    if pattern == "*":
        return not any(_globs(host, private) for private in _PRIVATE) and ":" not in host
    return _globs(host, pattern)


def _globs(host: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(parts), host) is not None
