"""Tokens: files of them, which may be changed while a service runs, and how an offered one is compared."""

import hmac
import ipaddress
import re
import time
from collections.abc import Iterable
from pathlib import Path

from rl_agent.errors import ConfigError
from rl_agent.system.files import check_private

TOKEN_RECHECK_S = 2.0
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)$", re.IGNORECASE)


def secret_variables(environ: Iterable[str]) -> frozenset[str]:
    """Return the names that end as those of API keys, tokens and passwords do."""
    return frozenset(name for name in environ if _SECRET.search(name))


class TokenCheck:
    """Holds the valid tokens; reads their file again when it changes, so tokens rotate without a restart."""

    def __init__(self, tokens: tuple[str, ...], file: Path | None) -> None:
        self._file = file
        self._tokens = tokens
        self._stamp = file.stat().st_mtime_ns if file else 0
        self._next_look = 0.0

    @classmethod
    def of(cls, file: Path | None, key: str) -> "TokenCheck":
        """Read a file's tokens; none are needed without a file. Raises ConfigError."""
        return cls(() if file is None else read_tokens(file, key), file)

    @property
    def is_needed(self) -> bool:
        return bool(self._tokens)

    def is_among(self, header: str) -> bool:
        """Compare in constant time, with every token whatever the first ones gave."""
        self._look_again()
        kind, _, credentials = header.partition(" ")
        offered = credentials.strip() if kind.lower() == "bearer" else ""
        matches = [is_same_secret(offered, token) for token in self._tokens]
        return any(matches)

    def _look_again(self) -> None:
        now = time.monotonic()
        if self._file is None or now < self._next_look:
            return
        self._next_look = now + TOKEN_RECHECK_S
        try:
            stamp = self._file.stat().st_mtime_ns
            if stamp != self._stamp:
                self._tokens, self._stamp = read_tokens(self._file), stamp
        except (OSError, ConfigError):
            return  # half-way through a rotation: the old tokens hold


def is_same_secret(offered: str, secret: str) -> bool:
    """Compare in constant time, whatever bytes were given: headers keep what is not UTF-8 as surrogates."""
    return hmac.compare_digest(offered.encode("utf-8", "surrogateescape"), secret.encode())


def read_tokens(path: Path, key: str = "token_file") -> tuple[str, ...]:
    """Read a token file. Raises ConfigError if it has no token, cannot be read, or others can read it too."""
    try:
        check_private(path, key)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{key}={path} cannot be read: {why}") from error
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not tokens:
        raise ConfigError(f"{key}={path}: there is no token in it; write one on a line of its own")
    return tokens


def host_and_port(text: str, key: str) -> tuple[str, int]:
    """Read an address to listen on. Raises ValueError that names the key."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{key} {text}: expected HOST:PORT, as in 0.0.0.0:5100")
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
