"""Environment workers of a node's process over several rollouts, against a simulated engine."""

import asyncio
import subprocess
import sys

from rl_agent.rollout.trajectories.shard import read_shard
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks
from tests.unit.env.remote.pools import is_gone, until

KIND = "+env_config.kinds.naming=tests.integration.rollout.environments:NamesItsProcess"


def workers_of(plan, iteration):
    """Return the processes that the environments of an iteration lived in."""
    return {
        int(episode.steps[0].observation.text)
        for episode in read_shard(plan.paths.shard("train", iteration))[1]
    }


def test_workers_stay_the_same_from_one_rollout_to_the_next(tmp_path):
    with simulated_engine(tmp_path) as url:
        words = ("env_config.workers=2", "env_config.train_tasks_rollout_size=-1")
        plan = make_plan(tmp_path, KIND, *words, engine_url=url)
        write_tasks(plan, 20, env="naming")
        file = plan.paths.log_path / "plan.json"
        plan.write(file)
        verbs = [("next",), *(("rollout", "--iteration", number, "--split", "train") for number in "123")]
        requests = [(verb, "--plan", file, *words) for verb, *words in verbs]
        typed = "".join(f"{word}\0" for request in requests for word in (len(request), *request))
        command = [sys.executable, "-m", "rl_agent.cli", "node", "--plan", str(file)]
        subprocess.run(command, input=typed, stdout=subprocess.DEVNULL, text=True, timeout=110, check=True)

    seen = {pid for iteration in (1, 2, 3) for pid in workers_of(plan, iteration)}
    assert len(seen) <= 2  # the one that is ready first may run all episodes; three rollouts would have three
    asyncio.run(until(lambda: all(is_gone(pid) for pid in seen)))
