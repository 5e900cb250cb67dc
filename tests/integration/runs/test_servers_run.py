"""A rollout over two environment servers: one is killed, then the run's driver, and the run goes on."""

import re
import signal

import pytest

from rl_agent.rollout.trajectories.shard import read_shard
from tests.integration.real_run import LIMIT_S, NUM_TASKS, Run
from tests.integration.rollout.test_environments_elsewhere import env_server
from tests.support.ports import quiet_ports

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.chaos, pytest.mark.timeout(1200)]

ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")


def test_an_iteration_over_two_servers_outlives_one_of_them_and_its_driver(tmp_path):
    ports = quiet_ports(2)
    listen = [f"127.0.0.1:{port}" for port in ports]
    urls = ",".join(f"http://{address}" for address in listen)
    with Run(tmp_path) as run, env_server(tmp_path, listen=listen[0]) as (_, kept):
        run.change(
            {
                "env_config.servers": f"[{urls}]",
                "env_config.servers_token_file": tmp_path / "env.token",
                "env_config.server_timeout_s": 5,
            }
        )
        with env_server(tmp_path, listen=listen[1]) as (_, killed):
            process = run.start(*ROLLOUT)
            run.wait_for_episodes(process, 5)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            run.wait_for_episodes(process, 15)
        process.send_signal(signal.SIGKILL)
        assert run.seconds_until_gone(process) < LIMIT_S
        before = run.finished()
        assert 15 <= len(before) < NUM_TASKS
        assert kept.poll() is None

        with env_server(tmp_path, listen=listen[1]):
            process = run.start(*ROLLOUT, "--resume")
            assert process.wait(400) == 0, (tmp_path / "output").read_text()[-4000:]
            assert run.seconds_until_gone(process) < LIMIT_S
        finished = run.finished()
        assert finished[: len(before)] == before
        assert sorted(finished) == sorted(f"{n}:0:0" for n in range(NUM_TASKS))
        ended = list(read_shard(run.paths.shard("train", 1))[1])
        assert {str(episode.status) for episode in ended} == {"completed"}
        reasons = {lost.failure.kind for episode in ended for lost in episode.lost_attempts}
        assert reasons <= {"EnvironmentLost"}
        output = (tmp_path / "output").read_text()
        assert f"{NUM_TASKS} episodes" in output
        assert set(re.findall(r"failed=(\d+)", output)) <= {"0"}
        assert "unrecorded" not in output
