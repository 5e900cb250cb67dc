"""HTTP client for single requests to a manager, which may move."""

import json
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError, HarnessError, RetryLater
from rl_agent.http import client as http_client
from rl_agent.pool.manager_file import ManagerFile, is_manager

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0


class TokenRefused(ConfigError):
    """The manager is there and does not let this client in."""


@dataclass(slots=True)
class Manager:
    """The address of a manager, and what a client needs to be let in; `file` states where it has moved."""

    url: str
    token: str | None = None
    tls_ca: Path | None = None
    file: ManagerFile | None = None

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request to this manager, where it is now. Raises like the function `ask`."""
        try:
            return ask(self.url, path, self.token, body, tls_ca=self.tls_ca)
        except HarnessError:  # a refusal, too: it may be of a stranger who has the old address
            if self.file is None or not self._has_moved(self.file):
                raise
        return ask(self.url, path, self.token, body, tls_ca=self.tls_ca)

    def _has_moved(self, file: ManagerFile) -> bool:
        """Move to the manager at the address that the file states, if one answers there."""
        address = file.read_other(self.url)
        if address is None:
            return False
        try:
            answer = ask(address, "/status", self.token, tls_ca=self.tls_ca)
        except HarnessError as error:
            log.debug("%s states an address without a manager: %s", file.where, error)
            return False
        if not is_manager(answer):
            return False
        self.url = address
        log.info("the manager has moved to %s", address)
        return True


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
        payload = http_client.request(
            url.rstrip("/") + path, content, token=key, timeout_s=TIMEOUT_S, tls_ca=tls_ca
        )
        answer = json.loads(payload)
        if not isinstance(answer, dict):
            raise ValueError("it answers no JSON object, so it is not a manager")
        return answer
    except http_client.RequestRefused as error:
        words = "the token is missing or wrong" if error.status == 401 else error.reason
        if error.status >= 500 or error.status == 429:
            raise RetryLater(f"{url}{path} answers {error.status}: {words}") from error
        if error.status in (401, 403):
            raise TokenRefused(f"{url}{path} answers {error.status}: {words}") from error
        raise ConfigError(f"{url}{path} answers {error.status}: {words}") from error
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise ConfigError(f"{url} has an untrusted certificate ({why})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RetryLater(f"{url} does not answer: {error}") from error
