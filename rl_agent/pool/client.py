"""HTTP client for single requests to a manager."""

import json
import ssl
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent import small_http
from rl_agent.errors import ConfigError, RetryLater

TIMEOUT_S = 5.0


class TokenRefused(ConfigError):
    """The manager is there and does not let this client in."""


@dataclass(frozen=True, slots=True)
class Manager:
    """The address of a manager, and what a client needs to be let in."""

    url: str
    token: str | None = None
    tls_ca: Path | None = None

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request to this manager. Raises like the function `ask`."""
        return ask(self.url, path, self.token, body, tls_ca=self.tls_ca)


def ask(
    url: str,
    path: str,
    key: str | None,
    body: Mapping[str, Any] | None = None,
    *,
    tls_ca: Path | None = None,
) -> dict[str, Any]:
    """Send one request to a manager. Raises ConfigError if it refuses, RetryLater if it does not answer."""
    content = None if body is None else json.dumps(body).encode()
    try:
        answer = small_http.request(
            url.rstrip("/") + path, content, token=key, timeout_s=TIMEOUT_S, tls_ca=tls_ca
        )
        found: dict[str, Any] = json.loads(answer)
        return found
    except urllib.error.HTTPError as error:
        with error:
            words = "the token is missing or wrong" if error.code == 401 else error.reason
        if error.code >= 500 or error.code == 429:
            raise RetryLater(f"{url}{path} answers {error.code}: {words}") from error
        if error.code in (401, 403):
            raise TokenRefused(f"{url}{path} answers {error.code}: {words}") from error
        raise ConfigError(f"{url}{path} answers {error.code}: {words}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = error.reason.verify_message
            raise ConfigError(f"{url} shows a certificate that is not trusted ({why})") from error
        raise RetryLater(f"{url} does not answer: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RetryLater(f"{url} does not answer: {error}") from error
