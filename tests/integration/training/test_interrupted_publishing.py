"""The old or the new model is served, whole, wherever publishing is cut off."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_agent.config.plan import Plan
from rl_agent.system import files
from rl_agent.trainer.llamafactory.publish import publish
from tests.unit.safetensors_files import write_model
from tests.unit.trainer.llamafactory import conftest
from tests.unit.trainer.llamafactory.trainings import finish_training, publish_iteration, served_value

plan, disk_without_waiting = conftest.plan, conftest.disk_without_waiting


class Crash(BaseException):
    """The process dies here: nothing catches it."""


STEPS = {
    Path: ("rename", "replace", "symlink_to", "hardlink_to", "mkdir", "unlink"),
    files.os: ("fsync",),
    shutil: ("rmtree",),
}
"""Everything that publishing does to the disk."""


@pytest.fixture
def crash_at(monkeypatch) -> Callable[[int], Callable[[], int]]:
    """Let the process die before its n-th step on the disk; returns a counter of the steps done."""

    def arm(fatal: int) -> Callable[[], int]:
        done = 0

        def guarded(step):
            def run(*args, **kwargs):
                nonlocal done
                if done == fatal:
                    raise Crash
                done += 1
                return step(*args, **kwargs)

            return run

        for owner, names in STEPS.items():
            for name in names:
                monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
        return lambda: done

    return arm


def every_crash(plan: Plan, iteration: int, crash_at, restore) -> Iterator[int]:
    """Publish `iteration` again and again, dying one step later each time, until it gets through."""
    for fatal in range(500):
        finish_training(plan, iteration)
        crash_at(fatal)
        try:
            publish(plan, iteration, os.environ, now=1.0)
        except Crash:
            restore()
            yield fatal
        else:
            restore()
            return
    pytest.fail("publishing never ended")


@pytest.mark.parametrize("start", ["a base model", "a version", "a user's link"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_model(plan, tmp_path, start, crash_at, monkeypatch):
    if start == "a version":
        publish_iteration(plan, 1)
    elif start == "a user's link":
        plan.paths.model_link.symlink_to(write_model(tmp_path / "outside", value=0.875))
    old, new = served_value(plan), 0.375

    crashes = 0
    for _ in every_crash(plan, 3, crash_at, monkeypatch.undo):
        assert served_value(plan) in (old, new)
        crashes += 1

    assert crashes > 20
    assert served_value(plan) == new
    leftovers = [path.name for path in plan.paths.checkpoints.iterdir() if path.name.endswith(".tmp")]
    assert leftovers == []
    assert not (plan.paths.log_path / "model.pt.tmp").exists()
