"""`next` reads from the disk what is done, also where a kill came before the flag."""

import pytest

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import next as verb
from rl_agent.served_model.versions import Published, write_record
from tests.integration.tiny_model import make_plan


def publish(plan, *, run_id: str) -> None:
    folder = plan.paths.version_dir(1)
    folder.mkdir(parents=True)
    write_record(folder, Published(1, None, run_id, 1, 1e-4, 8, 2, 0.0))
    plan.paths.model_link.symlink_to(folder)


def finish_shards(plan, iteration: int) -> None:
    for split in ("train", "test"):
        shard = plan.paths.shard(split, iteration)
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.touch()


@pytest.mark.parametrize(
    ("run_id", "phase"),
    [("run", {"iteration": 2, "phase": "rollout"}), ("another-run", {"iteration": 1, "phase": "update"})],
    ids=["its own update is not done twice", "the update of another run is not its own"],
)
def test_a_model_published_before_the_kill_ends_its_update(tmp_path, run_id, phase):
    plan = make_plan(tmp_path / "log", tmp_path / "base")
    plan.write(tmp_path / "plan.json")
    finish_shards(plan, 1)
    publish(plan, run_id=run_id)

    assert verb.main(["--plan", str(tmp_path / "plan.json")]) == VerbResult(phase)
