"""Decides who may see the page, and what a browser may do with it. Every answer passes here.

    request ─► Host ─► not sent by a foreign page ─► token, if one is needed (header or cookie) ─► handler
    answer  ─► headers: no script but our own file, nothing from elsewhere, in no frame, no guessed types

The page is read-only, so a link on a foreign site may lead here; nothing else of it may.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from rl_agent.http.browsers import refusal
from rl_agent.http.tokens import TokenCheck

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
COOKIE = "rl_agent_page"
COOKIE_AGE_S = 30 * 24 * 3600
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
IMAGE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOGIN = "/login"
_OPEN = (LOGIN, "/static/page.css")
"""Paths that are shown without a token."""


def guard(names: frozenset[str], tokens: TokenCheck, show_login: Callable[[int], web.Response]) -> Middleware:
    """Return the middleware that checks every request."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        served = None if tokens.is_needed else names
        if reason := refusal(request, served, "page.allowed_hosts names more", allows_links=True):
            raise web.HTTPForbidden(text=reason)
        if tokens.is_needed and not _has_token(request, tokens):
            return await handler(request) if request.path in _OPEN else show_login(401)
        return await handler(request)

    return check


def _has_token(request: web.Request, tokens: TokenCheck) -> bool:
    cookie = request.cookies.get(COOKIE, "")
    return tokens.is_among(request.headers.get("Authorization", "")) or tokens.is_among(f"Bearer {cookie}")


def remember(answer: web.Response, token: str, *, is_secure: bool) -> None:
    """Let the browser keep a valid token, where no script can read it."""
    answer.set_cookie(
        COOKIE, token, max_age=COOKIE_AGE_S, httponly=True, secure=is_secure, samesite="Lax", path="/"
    )


async def add_headers(request: web.Request, answer: web.StreamResponse) -> None:
    """Set the headers of every answer, errors included."""
    for name, value in HEADERS.items():
        answer.headers[name] = value
    answer.headers.setdefault("Content-Security-Policy", POLICY)
    answer.headers.setdefault("Cache-Control", "no-store")
