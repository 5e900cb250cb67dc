"""The files of a run, in a folder whose name is no plain word."""

from pathlib import Path

import pytest

from rl_agent.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "log with space ü")


@pytest.fixture
def growing(paths: RunPaths) -> Path:
    """A growing file of trajectories."""
    return paths.checkpoint_shard("train", 1)
