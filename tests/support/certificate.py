"""A certificate of one's own, as somebody without an authority makes one."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """The PEM files of a self-signed certificate for an address, and of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=pool"]
    words += ["-addext", f"subjectAltName=IP:{name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key
