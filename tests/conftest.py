"""Rules that hold for every test."""

import gc
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell starts what it puts in the background with Ctrl+C ignored, and children inherit that. The tests of
# Ctrl+C must not depend on how pytest itself was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Random examples a property: few on every change, many with `scripts/test.sh extended`.
settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("quick")


@pytest.fixture
def sleeper() -> "Iterator[subprocess.Popen[bytes]]":
    """Another process, which lives until the test ends it or is over."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for cycles only among what the tests make: modules and collected tests stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
