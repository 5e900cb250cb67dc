"""Refuses a body that a web page can make a browser send to a manager: JSON would need our permission."""

from aiohttp import hdrs, web

from rl_agent.pool.problem import problem


def check_content(request: web.Request) -> None:
    """Raises web.HTTPException for a body that is not JSON, or is compressed: that would be inflated here."""
    if not request.body_exists:
        return
    if request.content_type != "application/json":
        raise problem(415, "a body must be JSON and say so: Content-Type: application/json")
    if any(name.strip().lower() != "identity" for name in request.headers.getall(hdrs.CONTENT_ENCODING, ())):
        raise problem(415, "a body must not be compressed: leave Content-Encoding out")
