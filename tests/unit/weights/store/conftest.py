"""Fixtures of the tests of files."""

import tempfile
from pathlib import Path

import pytest

from rl_agent.weights.store.mapped_file import is_memory


@pytest.fixture
def memory():
    """A folder whose files lie in memory, where those that have their pages are written in place."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if not is_memory(Path(folder)):
            pytest.skip("/dev/shm does not lie in memory here")
        yield Path(folder)
