"""A log path whose `model.pt` was lost on the way: the driver does not take the base model for it."""

import json
import shlex
import shutil

from rl_agent.cli.__main__ import call

UPDATE = ("--rl-phase", "update", "--resume", "--max-iterations")


def lose(link, how):
    """Leave `model.pt` as a copy may: without links, with a link that leads nowhere, or links followed."""
    target = link.resolve()
    link.unlink()
    if how == "dangling":
        link.symlink_to("checkpoints/version-000009")
    elif how == "folder":
        shutil.copytree(target, link)


def put_back(harness, line):
    """Run the command that the line names; a folder is moved away before, as it says."""
    if (harness.log / "model.pt").is_dir():
        (harness.log / "model.pt").rename(harness.home / "aside")
    words = shlex.split(line[line.index("rl-agent rollback") : line.index(", or serve the base model")])
    assert call(words[1:]).status == 0


def test_a_lost_model_is_refused_and_the_named_command_restores_it(harness):
    fresh = [word for word in UPDATE if word != "--resume"]
    assert harness.run(*fresh, "2").returncode == 0
    link = harness.log / "model.pt"
    for how in ("gone", "dangling", "folder"):
        lose(link, how)
        refused = harness.plan(*UPDATE, "3")
        assert refused.returncode == 78
        (line,) = refused.stderr.splitlines()
        assert "whole versions are 1, 2" in line
        put_back(harness, line)
        assert link.resolve().name == "version-000002"

    done = harness.run(*UPDATE, "3")
    assert done.returncode == 0, done.stderr
    assert link.resolve().name == "version-000003"
    record = json.loads((link / "published.json").read_text())
    assert record["previous"] == "version-000002"
    assert (harness.log / "checkpoints" / "version-000001").is_dir()


def test_a_model_lost_during_a_run_ends_it_at_the_next_phase(harness):
    driver = harness.start("--rl-phase", "both", "--eval-interval", "9", FAKE_ROLLOUT="wait_for_file")
    (harness.home / "go-1").touch()
    harness.wait_for_call("rollout", 3)  # of both splits, then of iteration 2
    (harness.log / "model.pt").unlink()
    (harness.home / "go-2").touch()
    assert driver.wait(90) == 78
    assert "is gone, and led to version-000001; whole versions are 1" in harness.stderr
    assert (harness.log / "checkpoints" / "version-000001").is_dir()
