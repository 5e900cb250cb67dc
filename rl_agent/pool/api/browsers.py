"""Refuses what a web page can make a browser send to a manager; see `rl_agent.service.browsers`.

A body is of another type than JSON then, since JSON would need our permission.
"""

import socket

from aiohttp import hdrs, web

from rl_agent.config import PoolConfig
from rl_agent.pool.problem import problem
from rl_agent.service.browsers import is_foreign, unserved_host


def served_names(config: PoolConfig) -> frozenset[str]:
    """Return the names, in lower case, that `Host` may hold; an address always may."""
    return frozenset(name.lower() for name in (config.host, socket.gethostname(), *config.allowed_hosts))


def check_host(request: web.Request, names: frozenset[str]) -> None:
    """Raises web.HTTPException for a name that somebody else may have let lead here."""
    given = unserved_host(request, names)
    if given is not None:
        raise problem(403, f"Host: {given[:100]!r} is no name of this manager; allowed_hosts names more")


def check_origin(request: web.Request) -> None:
    """Raises web.HTTPException for what a page from elsewhere has made a browser send."""
    if is_foreign(request):
        origin = request.headers.get(hdrs.ORIGIN, "")
        raise problem(403, f"this was asked by a page from elsewhere (Origin: {origin[:100]!r})")


def check_content(request: web.Request) -> None:
    """Raises web.HTTPException for a body that is not JSON, or is compressed: that would be inflated here."""
    if not request.body_exists:
        return
    if request.content_type != "application/json":
        raise problem(415, "a body must be JSON and say so: Content-Type: application/json")
    if any(one.strip().lower() != "identity" for one in request.headers.getall(hdrs.CONTENT_ENCODING, ())):
        raise problem(415, "a body must not be compressed: leave Content-Encoding out")
