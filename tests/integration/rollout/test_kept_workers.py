"""Environment workers of a node's process over several rollouts, against a simulated engine."""

import subprocess
import sys

from rl_agent.rollout.trajectories.shard import read_shard
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks
from tests.unit.env.remote.pools import is_gone

KIND = "+env_config.kinds.naming=tests.integration.rollout.environments:NamesItsProcess"


class Node:
    """The verb `node`, asked as run.sh asks it."""

    def __init__(self, plan):
        self.plan, self.file = plan, plan.paths.log_path / "plan.json"
        plan.write(self.file)
        command = [sys.executable, "-m", "rl_agent.cli", "node", "--plan", str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.reply()[0] == "0"

    def ask(self, verb, *words):
        words = (verb, "--plan", str(self.file), *words)
        self.process.stdin.write("".join(f"{word}\0" for word in (len(words), *words)).encode())
        self.process.stdin.flush()
        return self.reply()

    def reply(self):
        words = []
        while not words or words[-1]:
            word = b""
            while (byte := self.process.stdout.read(1)) != b"\0":
                assert byte, "the node has ended"
                word += byte
            words.append(word.decode())
        return words[:-1]

    def end(self):
        self.process.communicate(timeout=30)
        return self.process.returncode


def workers_of(plan, split, iteration):
    """Return the processes that the environments of an iteration lived in."""
    return {
        int(episode.steps[0].observation.text)
        for episode in read_shard(plan.paths.shard(split, iteration))[1]
    }


def test_workers_stay_the_same_from_one_rollout_to_the_next(tmp_path):
    with simulated_engine(tmp_path) as url:
        words = ("env_config.workers=2", "env_config.train_tasks_rollout_size=-1")
        plan = make_plan(tmp_path, KIND, *words, engine_url=url)
        write_tasks(plan, 20, env="naming")
        node = Node(plan)
        assert "phase=rollout" in node.ask("next")
        for iteration in ("1", "2", "3"):
            assert node.ask("rollout", "--iteration", iteration, "--split", "train") == ["0"]
        assert node.end() == 0

    seen = {pid for iteration in (1, 2, 3) for pid in workers_of(plan, "train", iteration)}
    assert len(seen) <= 2  # the one that is ready first may run all episodes; three rollouts would have three
    assert all(is_gone(pid) for pid in seen)
