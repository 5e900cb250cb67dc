"""Real runs of agents that are programs with OpenAI's client: a local engine, and a pool that loses one."""

import json
import os
import signal
import sys

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.env.agent.programs import ADD, TOOL_LOOP, page_client
from tests.integration.pool.test_run_pool import engines, join_early
from tests.integration.real_run import Run
from tests.integration.runs.test_tools_run import ANSWER, CALL, TASK, make_model

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

LIMIT_S = 900
CHAT = """
import openai, sys, json

task = json.load(sys.stdin)
client = openai.OpenAI()
messages = [{"role": "user", "content": task["prompt"]}]
for _ in range(2):
    said = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Once more."}]
print(len(said) % 5)
"""


def agent(run: Run, text: str) -> tuple[str, ...]:
    (run.home / "my_agent.py").write_text(text)
    command = f"[{sys.executable},{run.home}/my_agent.py]"
    return "env_config.default_env=agent", f"+env_config.kwargs.agent.command={command}"


def write_tasks(run: Run, tasks: list[dict]) -> None:
    for split in ("train", "test"):
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (run.home / "data" / f"{split}.jsonl").write_text(lines)


def test_an_agent_with_tools_runs_with_the_local_engine(tmp_path):
    with Run(tmp_path, make_model(tmp_path / "model", [ADD])) as run:
        write_tasks(run, [{"task_id": "sum", "prompt": TASK.prompt, "answer": ANSWER}])
        run.change({"engine.max_model_len": 1024, "policy_config.temperature": 0})
        text = TOOL_LOOP.replace('{"role": "system", "content": "You add."}, ', "")  # as it was taught
        process = run.start(
            "--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1",
            *agent(run, text),
        )  # fmt: skip
        assert process.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()[-4000:]
        run.seconds_until_gone(process)

        (trajectory,) = read_shard(run.paths.shard("train", 1))[1]
        assert [step.begins for step in trajectory.steps] == ["", ""]
        assert trajectory.steps[0].generation.text == CALL
        assert (trajectory.steps[1].action, trajectory.reward) == (ANSWER, 1.0)


def test_agents_in_a_pool_are_trained_on_though_an_engine_dies(tmp_path):
    tasks, siblings, port = 8, 4, free_port()
    with Run(tmp_path) as run:
        write_tasks(run, [{"task_id": str(n), "prompt": f"{n} + 1 ="} for n in range(tasks)])
        run.change({"env_config.train_tasks_rollout_size": tasks})
        manager = f"http://127.0.0.1:{port}"
        joined = join_early(run, manager, "spot")
        process = run.start(
            "--rl-phase", "both", "--no-final-eval", "--eval-interval", "2", "--max-iterations", "2",
            "trainer=grpo_cpu", "pool=elastic", f"pool.port={port}", f"rollout.group_size={siblings}",
            "trainer.mini_batches=1", *agent(run, CHAT),
        )  # fmt: skip
        run.wait_for_episodes(process, 1)
        run.wait_until(lambda: engines(manager).get("spot", {}).get("running"), process, LIMIT_S)
        os.killpg(joined.pid, signal.SIGKILL)
        joined.wait(10)
        assert process.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()[-4000:]

        steps = [record for record in metrics.read(run.paths.metrics) if "update_step" in record]
        assert sum(step["trainer/episodes"] for step in steps) == 2 * tasks * siblings
        # The trainer's logprobs of the recorded tokens are those with which the engines sampled them.
        assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
        for iteration in (1, 2):
            episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
            assert len({episode.key for episode in episodes}) == len(episodes) == tasks * siblings
            for episode in episodes:
                assert [step.begins for step in episode.steps] == ["", ""]
                assert all(step.generation.spans for step in episode.steps)


def test_grpo_trains_agents_that_run_already_though_the_manager_is_killed(tmp_path):
    tasks, siblings, address = 8, 4, f"127.0.0.1:{free_port()}"
    reward = ('float((answer.content or "").strip() == task["answer"])', 'len(answer.content or "") % 5')
    with Run(tmp_path) as run, page_client(tmp_path, address, reward) as first:
        with page_client(tmp_path, address, reward) as other:
            write_tasks(run, [{"task_id": str(n), "prompt": f"{n} + 1 ="} for n in range(tasks)])
            run.change({"env_config.train_tasks_rollout_size": tasks})
            process = run.start(
                "--rl-phase", "both", "--no-final-eval", "--eval-interval", "2", "--max-iterations", "2",
                "trainer=grpo_cpu", "pool=elastic", f"pool.port={free_port()}",
                f"rollout.group_size={siblings}", "trainer.mini_batches=1", "env_config.default_env=agent",
                f"+env_config.kwargs.agent.listen={address}",
            )  # fmt: skip
            run.wait_for_episodes(process, 1)
            killed_at = len(run.finished())
            os.killpg(run.leader("manager"), signal.SIGKILL)
            assert killed_at < tasks * siblings, "the manager was to be killed in mid-rollout"
            assert process.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()[-4000:]
            assert [client.wait(20) for client in (first, other)] == [0, 0], "they were told of the end"

        steps = [record for record in metrics.read(run.paths.metrics) if "update_step" in record]
        assert sum(step["trainer/episodes"] for step in steps) == 2 * tasks * siblings
        # The trainer's logprobs of the recorded tokens are those with which the engines sampled them.
        assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
        for iteration in (1, 2):
            episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
            assert len({episode.key for episode in episodes}) == len(episodes) == tasks * siblings
            assert not any(episode.lost_attempts for episode in episodes)
            for episode in episodes:
                (step,) = episode.steps
                assert step.generation.spans
                assert episode.reward in range(5)
            assert len({episode.reward for episode in episodes}) > 1
