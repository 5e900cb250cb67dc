"""One small request over HTTP, for those who keep no connection; `urllib`, for it loads in no time.

Engines and managers are reached directly: a proxy for the outer world does not know 127.0.0.1.
"""

import urllib.request
from pathlib import Path

from rl_agent.tls import trusting

MAX_BYTES = 8 * 2**20


def request(
    url: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    timeout_s: float,
    tls_ca: Path | None = None,
    uses_proxy: bool = False,
) -> bytes:
    """At most `MAX_BYTES` of the answer; with a body, JSON, it is a POST.

    Raises urllib.error.HTTPError for a status from 400 on, else OSError (URLError, if there is no
    connection), and ValueError for an address that is none.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: expected http://host:port")
    asked = urllib.request.Request(url, body)  # noqa: S310 - the scheme was checked
    if body is not None:
        asked.add_header("Content-Type", "application/json")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    handlers: list[urllib.request.BaseHandler] = [] if uses_proxy else [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=trusting(tls_ca)))
    with urllib.request.build_opener(*handlers).open(asked, timeout=timeout_s) as answer:
        content: bytes = answer.read(MAX_BYTES)
        return content
