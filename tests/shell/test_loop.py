"""The phase loop of `run.sh`, with real groups and real plans and stubbed models."""

import json


def test_both_collects_evaluates_updates_and_serves_the_new_model(harness):
    done = harness.run("--rl-phase", "both", "--eval-interval", "2", "--max-iterations", "2")

    assert done.returncode == 0, done.stderr
    assert harness.verbs == [
        "serve", "rollout", "rollout", "prepare-update", "train", "publish",
        "serve", "rollout", "prepare-update", "train", "publish",
    ]  # fmt: skip
    assert (harness.log / "model.pt").resolve().name == "version-000002"
    names = [json.loads(line)["name"] for line in (harness.log / "timeline.jsonl").read_text().splitlines()]
    assert names == [
        "engine_start", "rollout", "evaluate", "update", "engine_start", "rollout", "update"
    ]  # fmt: skip
    assert harness.processes() == {}
    assert not (harness.log / "run.lock").exists()
