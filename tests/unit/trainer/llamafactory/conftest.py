"""A plan whose base model is a small file, on a disk that does not wait."""

import subprocess
from pathlib import Path

import pytest

from rl_agent.config.plan import Plan
from rl_agent.system import files
from rl_agent.trainer.llamafactory.optimizer import reshape
from tests.integration.tiny_model import make_plan
from tests.unit.safetensors_files import write_model
from tests.unit.trainer.llamafactory.optimizer.optimizer_states import write_optimizer_state


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: None)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    base = write_model(tmp_path / "base", value=0.0)
    return make_plan(tmp_path / "log with space", base)


@pytest.fixture
def plan_of(tmp_path: Path):
    """Return a maker of plans with these overrides and one base model."""
    base = write_model(tmp_path / "base")
    return lambda *overrides: make_plan(tmp_path / "log", base, *overrides)


@pytest.fixture
def trainer_of(tmp_path: Path):
    """Return a maker of the trainer's settings."""
    return lambda *words: make_plan(tmp_path / "log", tmp_path / "base", *words).config.trainer


@pytest.fixture
def converter(monkeypatch):
    """Stands in for DeepSpeed's converter: notes the command, ends with a status, or does not end (None)."""
    commands = []

    def ends_with(status):
        def run(command, *, timeout, stdout, **_):
            commands.append(command)
            stdout.write(b"its words")
            if status is None:
                raise subprocess.TimeoutExpired(command, timeout)
            return subprocess.CompletedProcess(command, status)

        monkeypatch.setattr(reshape.subprocess, "run", run)
        return commands

    return ends_with


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of a version's trainer, with a real state of AdamW."""
    folder = write_optimizer_state(tmp_path / "version" / "trainer")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder
