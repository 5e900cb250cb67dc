"""A judge's key, and no proxy between it and its server."""

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
