"""Refuses what a web page can make a browser send: forged requests (CSRF) and DNS rebinding.

A manager without a token answers whoever is on its machine, and a browser there shows pages from anywhere.
What such a page can send gives it away: a name of its own as `Host`, an `Origin` that is not ours, the word
`cross-site` in `Sec-Fetch-Site`, or a body of another type than JSON, since JSON would need our permission.
"""

import ipaddress
import re
import socket

from aiohttp import hdrs, web

from rl_agent.config import PoolConfig
from rl_agent.pool.problem import problem

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_FOREIGN = ("cross-site", "same-site")
"""Of `Sec-Fetch-Site`; what a person types into the address bar is `none`."""


def served_names(config: PoolConfig) -> frozenset[str]:
    """Return the names, in lower case, that `Host` may hold; an address always may."""
    return frozenset(name.lower() for name in (config.host, socket.gethostname(), *config.allowed_hosts))


def check_host(request: web.Request, names: frozenset[str]) -> None:
    """Raises web.HTTPException for a name that somebody else may have let lead here."""
    for given in request.headers.getall(hdrs.HOST, ()):
        found = _HOST.fullmatch(given)
        if found is None or not _is_served(found[1].lower().rstrip("."), names):
            raise problem(403, f"Host: {given[:100]!r} is no name of this manager; allowed_hosts names more")


def _is_served(host: str, names: frozenset[str]) -> bool:
    if host in names or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def check_origin(request: web.Request) -> None:
    """Raises web.HTTPException for what a page from elsewhere has made a browser send."""
    origin = request.headers.get(hdrs.ORIGIN)
    is_foreign = request.headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN
    if origin is not None:
        is_foreign |= origin.partition("://")[2].lower() != request.headers.get(hdrs.HOST, "").lower()
    if is_foreign:
        raise problem(403, f"this was asked by a page from elsewhere (Origin: {(origin or '')[:100]!r})")


def check_content(request: web.Request) -> None:
    """Raises web.HTTPException for a body that is not JSON, or is compressed: that would be inflated here."""
    if not request.body_exists:
        return
    if request.content_type != "application/json":
        raise problem(415, "a body must be JSON and say so: Content-Type: application/json")
    if any(one.strip().lower() != "identity" for one in request.headers.getall(hdrs.CONTENT_ENCODING, ())):
        raise problem(415, "a body must not be compressed: leave Content-Encoding out")
