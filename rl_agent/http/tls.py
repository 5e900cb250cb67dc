"""TLS between the parts of a pool: with which certificate a service answers, and whom a client trusts."""

import ssl
from functools import cache
from pathlib import Path

from rl_agent.errors import ConfigError
from rl_agent.system.files import check_private


def serving(certificate: Path | None, key: Path | None, key_name: str = "tls_key") -> ssl.SSLContext | None:
    """Load a certificate and its key; None without a certificate.

    Raises ConfigError if they cannot be used together, or others can read the key.
    """
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"tls_certificate={certificate}: {error}") from error
    if key is not None:
        check_private(key, key_name)
    return context


@cache  # the system's authorities alone take 20 ms to read
def trusting(authority: Path | None) -> ssl.SSLContext:
    """Trust the system's authorities, and the certificates in a PEM file. Raises ConfigError."""
    context = ssl.create_default_context()
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise ConfigError(f"tls_ca={authority}: {error}; expected a PEM file of certificates") from error
    return context
