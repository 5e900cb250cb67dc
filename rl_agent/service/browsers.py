"""Finds out what a foreign web page can make a browser send: forged requests (CSRF) and DNS rebinding.

A service without a token answers whoever is on its machine, and a browser there shows pages from anywhere.
What such a page can send gives it away: a name of its own as `Host`, an `Origin` that is not ours, or the
word `cross-site` in `Sec-Fetch-Site`.
"""

import ipaddress
import re

from aiohttp import hdrs, web

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_FOREIGN = ("cross-site", "same-site")
"""Of `Sec-Fetch-Site`; what a person types into the address bar is `none`."""


def unserved_host(request: web.Request, names: frozenset[str]) -> str | None:
    """Return the `Host` that is neither one of `names` (in lower case) nor an address; None if all are."""
    for given in request.headers.getall(hdrs.HOST, ()):
        found = _HOST.fullmatch(given)
        if found is None or not _is_served(found[1].lower().rstrip("."), names):
            return given
    return None


def _is_served(host: str, names: frozenset[str]) -> bool:
    if host in names or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_foreign(request: web.Request) -> bool:
    """Return whether a page from elsewhere has made a browser send this."""
    origin = request.headers.get(hdrs.ORIGIN)
    if request.headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN:
        return True
    host = request.headers.get(hdrs.HOST, "").lower()
    return origin is not None and origin.partition("://")[2].lower() != host
