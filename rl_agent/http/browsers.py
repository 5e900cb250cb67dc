"""Refuses the requests that a foreign web page can make a browser send: forged ones (CSRF), DNS rebinding.

A service without a token answers whoever is on its machine, and a browser there shows pages from anywhere.
What such a page can send gives it away: a name of its own as `Host`, an `Origin` that is not ours, or the
word `cross-site` in `Sec-Fetch-Site`.
"""

import ipaddress
import re
import socket

from aiohttp import hdrs, web

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_FOREIGN = ("cross-site", "same-site")
"""Values of `Sec-Fetch-Site`; an address that a person types has `none`."""


def served_names(*names: str) -> frozenset[str]:
    """Return what `Host` may name: this machine and these names, in lower case; an address always may."""
    return frozenset(name.lower() for name in (socket.gethostname(), *names))


def refusal(
    request: web.Request, names: frozenset[str] | None, remedy: str, *, allows_links: bool = False
) -> str | None:
    """Return why a request is refused that a foreign page may have sent; None for every other one.

    Any name may lead to a service that needs a token: its `names` are None. With `allows_links` a person may
    follow a link from elsewhere to a whole page. `remedy` says how one more name is allowed.
    """
    if _is_foreign(request) and not (allows_links and _is_link(request)):
        origin = request.headers.get(hdrs.ORIGIN, "")
        return f"this was asked by a page from elsewhere (Origin: {origin[:100]!r})"
    if names is None:
        return None
    for host in request.headers.getall(hdrs.HOST, ()):
        match = _HOST.fullmatch(host)
        if match is None or not _is_served(match[1].lower().rstrip("."), names):
            return f"Host: {host[:100]!r} is not a name of this service; {remedy}"
    return None


def _is_served(host: str, names: frozenset[str]) -> bool:
    if host in names or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_foreign(request: web.Request) -> bool:
    origin = request.headers.get(hdrs.ORIGIN)
    if request.headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN:
        return True
    host = request.headers.get(hdrs.HOST, "").lower()
    return origin is not None and origin.partition("://")[2].lower() != host


def _is_link(request: web.Request) -> bool:
    mode = (request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest"))
    return request.method == "GET" and mode == ("navigate", "document") and "Origin" not in request.headers
