"""A plan whose base model is a small file, on a disk that does not wait."""

from pathlib import Path

import pytest

from rl_agent.config.plan import Plan
from rl_agent.system import files
from tests.integration.tiny_model import make_plan
from tests.unit.safetensors_files import write_model


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: None)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    base = write_model(tmp_path / "base", value=0.0)
    return make_plan(tmp_path / "log with space", base)
