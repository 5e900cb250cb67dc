"""A data path, a log path and a home of which some cannot be written, and models that lie there."""

import pytest

from rl_agent.config.overrides.words import parse_override
from rl_agent.plan import checks, disk, make
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import hub_cache, shared_environment
from rl_agent.plan.hub import FoundModel

MODEL = "org/model"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A data path, a log path and a home; `place.read_only` names those that cannot be written."""

    class Place:
        data, log, home = (tmp_path / name for name in ("data", "log", "home"))
        read_only: tuple = ()

        @property
        def config(self):
            words = [parse_override(f"model_config.base_model={MODEL}", "test")]
            return compose_config(words, data_path=self.data, log_path=self.log, num_gpus=0).config

        def environ(self, **more):
            return {"HOME": str(self.home), **more}

        def variables(self, **more):
            return shared_environment(self.config, self.environ(**more)).variables

        def cache(self, **more):
            return hub_cache(self.config, self.environ(**more))

    place = Place()
    for folder in (place.data, place.log, place.home):
        folder.mkdir()

    def access(path, mode):
        return not any(path == folder or folder in path.parents for folder in place.read_only)

    monkeypatch.setattr(disk.os, "access", access)
    return place


def download(hub, *, weights=True):
    folder = hub / "models--org--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / "model.safetensors").write_bytes(b"w")
    return folder


def own_hub(place):
    return place.data / ".cache" / "huggingface" / "hub"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return a function that prepares a start on a machine that has everything."""
    (tmp_path / "tasks").mkdir()
    for split in ("train", "test"):
        (tmp_path / "tasks" / f"{split}.jsonl").write_text('{"task_id": "t", "prompt": "old"}\n')

    def check_machine(config, command, task_files, *, num_gpus, cache, environ, plays):
        model = FoundModel("some/model", None, None, frozenset())
        space = disk.DiskEstimate(1 << 30, 2 << 30, tmp_path)
        return checks.Machine(model, {"train": 8}, {"train": 4}, space, (), ("a note",))

    monkeypatch.setattr(checks, "check_machine", check_machine)

    def start(*words: str, phase: str = "both") -> make.PreparedStart:
        paths = ("--data-path", str(tmp_path / "tasks"), "--log-path", str(tmp_path / "log"))
        given = ("--eval-interval", "2") if phase == "both" and "--eval-interval" not in words else ()
        return make.prepare([*paths, "--rl-phase", phase, *given, *words], {"HOME": str(tmp_path)})

    return start
