"""Checks network and token of every call to the manager, except for /health.

All of it is decided by the head of a request; nothing has read a byte of its body by then.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from aiohttp import hdrs, web

from rl_agent.config.plan import PoolConfig
from rl_agent.http.browsers import refusal, served_names
from rl_agent.http.tokens import TokenCheck
from rl_agent.pool.problem import problem
from rl_agent.pool.settings import Network, admin_tokens_of, networks_of, tokens_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


IS_OPERATOR = web.RequestKey("is_operator", bool)
"""True for a call with the admin's token, or where no token is needed at all."""


def guard(config: PoolConfig, environ: Mapping[str, str]) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that checks every call."""
    networks = networks_of("allowed_sender_ips", config.allowed_sender_ips)
    tokens = TokenCheck(tokens_of(config, environ), config.token_file)
    admins = TokenCheck(admin_tokens_of(config), config.admin_token_file)
    names = served_names(config.host, *config.allowed_hosts)

    def check_token(request: web.Request) -> None:
        header = request.headers.get("Authorization", "")
        is_admin = admins.is_among(header)
        if tokens.is_needed and not (tokens.is_among(header) or is_admin):
            missing = problem(401, "a valid token is needed: Authorization: Bearer TOKEN")
            missing.force_close()  # who has none holds no connection
            raise missing
        request[IS_OPERATOR] = is_admin or not (tokens.is_needed or admins.is_needed)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/health" and request.method in ("GET", "HEAD"):
            return await handler(request)
        if not is_inside(request.remote, networks):
            raise problem(403, "this address is not in allowed_sender_ips")
        if reason := refusal(request, None if tokens.is_needed else names, "allowed_hosts names more"):
            raise problem(403, reason)
        check_token(request)
        if (unknown := request.match_info.http_exception) is not None:
            raise problem(unknown.status, f"{request.method} {request.path[:200]!r}: {unknown.reason}")
        check_content(request)
        return await handler(request)

    return check


def check_content(request: web.Request) -> None:
    """Refuse a body that a web page can make a browser send, and one that would be inflated here.

    Raises web.HTTPException for what is not JSON, which a page must ask for, or is compressed.
    """
    if not request.body_exists:
        return
    if request.content_type != "application/json":
        raise problem(415, "a body must be JSON and say so: Content-Type: application/json")
    if any(name.strip().lower() != "identity" for name in request.headers.getall(hdrs.CONTENT_ENCODING, ())):
        raise problem(415, "a body must not be compressed: leave Content-Encoding out")


@lru_cache(maxsize=4096)
def is_inside(address: str | None, networks: tuple[Network, ...]) -> bool:
    try:
        ip = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks if network.version == ip.version)


def check_address(host: str, peer: str | None, networks: tuple[Network, ...]) -> None:
    """Refuse an engine's address that is neither its registrant's own nor in an allowed network.

    Raises web.HTTPException. Names are not resolved: what they mean can change after the check.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise problem(422, f"{host!r}: an engine's address is an IP address, not a name") from None
    own = (peer or "").partition("%")[0].removeprefix("::ffff:")
    is_own = host == own or (address.is_loopback and is_local(own))
    if not is_own and not is_inside(host, networks):
        raise problem(403, f"{host} is not your address ({own}), nor in allowed_engine_networks")


def is_local(address: str | None) -> bool:
    return address == "localhost" or is_inside(address, _LOOPBACK)


_LOOPBACK = networks_of("loopback", ("127.0.0.0/8", "::1/128"))
