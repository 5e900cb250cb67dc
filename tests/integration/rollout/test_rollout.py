"""The verb `rollout` as bash runs it, against a simulated engine in its own process."""

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rl_agent.cli.driver import rollout
from rl_agent.errors import EXIT_CONFIG, EXIT_MACHINE, EXIT_RETRY_LATER
from rl_agent.rollout.trajectories.shard import read_shard
from tests.support.rollout_setup import engine_process, make_plan, simulated_engine, write_tasks
from tests.unit.judge.judge_api import Api, error, serving

KIND = "+env_config.kinds.instant=benchmarks.rollout.environments:InstantEnvironment"
ALL = "env_config.train_tasks_rollout_size=-1"
DEADLINE_S = 30


def command(plan, *flags):
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    verb = [sys.executable, "-m", "rl_agent.cli", "rollout", "--plan", str(path)]
    return [*verb, "--iteration", "1", "--split", "train", *flags]


def run(plan, *flags):
    return subprocess.run(command(plan, *flags), capture_output=True, text=True, timeout=DEADLINE_S)


def keys_on_disk(path):
    return Counter(trajectory.key for trajectory in read_shard(path)[1])


def wait_for_lines(path, count):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not reach {count} lines")


def test_a_rollout_ends_with_a_whole_shard_its_numbers_and_its_account(tmp_path):
    with simulated_engine(tmp_path) as url:
        plan = make_plan(tmp_path, KIND, ALL, engine_url=url)
        write_tasks(plan, 40, env="instant", difficulty="hard")
        ended = run(plan)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "submitted=40 completed=40 failed=0 timed_out=0 abandoned=0\n"
    header, trajectories = read_shard(plan.paths.shard("train", 1))
    assert header.weight_version == 0
    assert {len(t.steps[0].generation.token_ids) for t in trajectories} == {8}
    (record,) = [json.loads(line) for line in plan.paths.metrics.read_text().splitlines()]
    assert record["train/success_rate"] == record["train/hard/success_rate"] == 1.0
    assert 0.0 <= record["train/engine_idle_share"] <= 1.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_rollout_keeps_ended_episodes_and_resumes_the_rest_once(tmp_path, number):
    with simulated_engine(tmp_path, latency="constant:0.05") as url:
        plan = make_plan(tmp_path, KIND, ALL, "env_config.server_size=4", engine_url=url)
        write_tasks(plan, 60, env="instant")
        growing = plan.paths.checkpoint_shard("train", 1)
        process = subprocess.Popen(
            command(plan), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        wait_for_lines(growing, 10)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + number
        kept = keys_on_disk(growing)
        assert 10 <= len(kept) < 60

        resumed = run(plan, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    assert "submitted=60 completed=60" in resumed.stdout
    keys = keys_on_disk(plan.paths.shard("train", 1))
    assert len(keys) == 60
    assert set(keys.values()) == {1}


def test_a_dead_engine_ends_the_rollout_to_be_resumed_and_fails_no_episode(tmp_path):
    with engine_process(tmp_path, latency="constant:0.02") as (url, engine):
        plan = make_plan(tmp_path, KIND, ALL, "env_config.server_size=4", engine_url=url)
        write_tasks(plan, 500, env="instant")
        process = subprocess.Popen(
            command(plan), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        wait_for_lines(plan.paths.checkpoint_shard("train", 1), 10)
        os.killpg(engine.pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == EXIT_RETRY_LATER
    assert stderr.splitlines()[-1].startswith("rollout: the engine at http://127.0.0.1:")
    trajectories = read_shard(plan.paths.checkpoint_shard("train", 1))[1]
    assert {trajectory.status for trajectory in trajectories} == {"completed"}


def test_a_flaky_engine_costs_no_episode(tmp_path):
    with simulated_engine(tmp_path, failure_share=0.2, cut_share=0.1) as url:
        plan = make_plan(tmp_path, KIND, ALL, "rollout.request_retries=8", engine_url=url)
        write_tasks(plan, 100, env="instant")
        ended = run(plan)

    assert ended.stdout == "submitted=100 completed=100 failed=0 timed_out=0 abandoned=0\n"


def test_hanging_environment_threads_delay_neither_episodes_nor_the_exit(tmp_path):
    with simulated_engine(tmp_path) as url:
        kind = "+env_config.kinds.hanging=tests.unit.rollout.hanging:HangingEnvironment"
        limits = ("rollout.step_timeout_s=0.2", "env_config.server_size=4", "rollout.completion_threshold=1")
        plan = make_plan(tmp_path, kind, ALL, *limits, engine_url=url)
        write_tasks(plan, 20, env="hanging")
        ended = run(plan)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "submitted=20 completed=10 failed=0 timed_out=10 abandoned=0\n"
    assert "left behind" in ended.stderr


def test_an_engine_with_another_model_is_reported_and_left_alone(tmp_path):
    with simulated_engine(tmp_path / "other") as url:
        plan = make_plan(tmp_path, KIND, ALL, engine_url=url)
        write_tasks(plan, 2, env="instant")
        ended = run(plan)

    assert ended.returncode == EXIT_MACHINE
    assert f"serves {tmp_path / 'other' / 'model'}, this run wants {tmp_path / 'model'}" in ended.stderr


async def test_a_judge_that_refuses_its_settings_ends_the_rollout_first(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    refusal = "Unsupported value: 'temperature' does not support 0.0 with this model."
    api = Api(error(400, message=refusal))
    with simulated_engine(tmp_path) as url:
        async with serving(api) as judge_url:
            judge = ("rollout.reward=judge", f"openai_config.base_url={judge_url}")
            plan = make_plan(tmp_path, KIND, ALL, *judge, engine_url=url)
            write_tasks(plan, 4, env="instant")
            ended = await asyncio.to_thread(run, plan)

    assert ended.returncode == EXIT_CONFIG, ended.stderr
    assert f"(400): {refusal}; set openai_config.temperature=null" in ended.stderr.splitlines()[-1]
    assert len(api.requests) == 1
    assert not plan.paths.checkpoint_shard("train", 1).exists()


def test_rollouts_one_after_another_in_one_process_leave_nothing_behind(tmp_path):
    def left_behind():
        gc.collect()
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        settings = handlers, len(logging.getLogger().handlers), gc.get_threshold(), gc.get_freeze_count()
        threads = {thread.name for thread in threading.enumerate()}
        return settings, threads, len(list(Path("/proc/self/fd").iterdir()))

    with simulated_engine(tmp_path) as url:
        plan = make_plan(tmp_path, KIND, ALL, "env_config.server_size=4", engine_url=url)
        write_tasks(plan, 20, env="instant")
        argv = command(plan)[4:]
        iteration = argv.index("--iteration") + 1
        leftovers = []
        for number in range(1, 4):
            argv[iteration] = str(number)
            assert rollout.main(argv) == 0
            leftovers.append(left_behind())

    (settings, threads, files), *_, (settings_at_end, threads_at_end, files_at_end) = leftovers
    assert settings_at_end == settings
    assert threads_at_end <= threads, "what earlier tests of this process left may end meanwhile"
    assert files_at_end <= files


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_that_ends_the_rollout_reaches_the_process_around_it(tmp_path, monkeypatch, caplog, rank):
    async def interrupted(self, assignment, member):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    heard = []
    monkeypatch.setattr("rl_agent.rollout.run.Rollouts.run", interrupted)
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1")
    words = {"rank": rank, "num_nodes": 2, "rank_weights": (1, 1)}
    plan = plan.model_copy(update={"command": plan.command.model_copy(update=words)})
    caplog.set_level(logging.INFO)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        assert rollout.main(command(plan)[4:]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert "what ended is on disk" in caplog.text
    assert ("--resume" in caplog.text) == (rank == 0), "no other rank accepts the flag"


def test_a_reward_function_of_a_file_scores_in_workers(tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "def score(completion, answer, unit, **columns):\n"
        "    if columns['task_id'] == 'task-3': return None\n"
        "    return {'length': len(completion), 'fields': f'{answer} {unit}' == '2 m'}\n"
    )
    word = f"env_config.default_env={tmp_path}/my_rewards.py:score"
    with simulated_engine(tmp_path) as url:
        plan = make_plan(tmp_path, word, ALL, "rollout.reward_weights={length: 2}", engine_url=url)
        write_tasks(plan, 4, env="", unit="m")
        ended = run(plan)

    assert ended.stdout == "submitted=4 completed=3 failed=1 timed_out=0 abandoned=0\n", ended.stderr
    for trajectory in read_shard(plan.paths.shard("train", 1))[1]:
        length, fields = len(trajectory.steps[-1].action), trajectory.key.task_id == "task-1"
        if trajectory.key.task_id == "task-3":
            refused = "my_rewards.py:1: score returned None, not a number to learn from"
            assert refused in trajectory.failure.message
        else:
            assert trajectory.rewards == {"length": length, "fields": fields}
            assert trajectory.reward == 2 * length + fields
