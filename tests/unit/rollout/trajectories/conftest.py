"""A growing file of trajectories."""

from pathlib import Path

import pytest

from rl_agent.paths import RunPaths


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    return RunPaths(tmp_path / "log with space ü").checkpoint_shard("train", 1)
