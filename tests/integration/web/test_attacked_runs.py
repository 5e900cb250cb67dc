"""Real web rollouts: engine, worker or environment server sleeps, the driver dies, the disk is full."""

import os
import signal

import pytest

from rl_agent.env.guard import has_word
from tests.integration.real_run import LIMIT_S
from tests.integration.rollout.test_environments_elsewhere import assert_all_end, env_server
from tests.support.small_disk import fill, small_disk_at

from .attacked_run import EPISODES, WebRun, below, frozen, make_model, vision_variables

pytestmark = [pytest.mark.extended, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    return vision_variables(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def model(tmp_path_factory, variables):
    return make_model(tmp_path_factory.mktemp("vision") / "model", variables)


def test_a_web_rollout_survives_sleep_ctrl_c_and_a_killed_driver(tmp_path, model, variables):
    with WebRun(tmp_path, model, variables) as run:
        process = run.begin()
        run.wait_for_more(process)
        with frozen([run.engine.pid]):
            pass
        run.wait_for_more(process)
        browser = run.below_workers("--type=renderer")
        pids = [pid for pid in run.processes() if has_word(pid, b"remote.worker")]
        (worker,) = [pid for pid in pids if not has_word(pid, b"guard.py")]
        with frozen([worker]):
            assert_all_end(browser)  # a worker that is silent is ended with its browser
        run.wait_for_more(process)

        browser = run.below_workers("--type=")
        os.killpg(process.pid, signal.SIGINT)
        assert run.seconds_until_gone(process) < LIMIT_S
        assert process.returncode == 128 + signal.SIGINT
        assert_all_end(browser)
        after_ctrl_c = run.finished()

        process = run.begin("--resume")
        run.wait_for_more(process)
        browser = run.below_workers("--type=")
        process.send_signal(signal.SIGKILL)
        assert run.seconds_until_gone(process) < LIMIT_S
        assert_all_end(browser)
        after_kill = run.finished()
        assert after_kill[: len(after_ctrl_c)] == after_ctrl_c
        assert len(after_kill) < EPISODES

        ended = run.end(run.begin("--resume"))
        assert [str(episode.key) for episode in ended][: len(after_kill)] == after_kill
        reasons = {lost.failure.kind for episode in ended for lost in episode.lost_attempts}
        assert reasons == {"EnvironmentLost"}


def test_a_web_rollout_outlives_a_sleeping_environment_server(tmp_path, model, variables):
    token = {"env_config.servers_token_file": tmp_path / "env.token"}
    timeout = {
        "env_config.server_timeout_s": 5,
        "env_config.workers": "null",
    }
    with env_server(tmp_path) as (url, server):
        with WebRun(
            tmp_path, model, variables, **token, **timeout, **{"env_config.servers": f"[{url}]"}
        ) as run:
            process = run.begin()
            run.wait_for_more(process)
            with frozen([server.pid]):
                pass
            ended = run.end(process)
            lost = [lost.failure.message for episode in ended for lost in episode.lost_attempts]
            assert any("it has been silent for" in message for message in lost)
        below_server = below(server.pid, "chrom")
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        assert_all_end(below_server)


def test_a_web_rollout_on_a_full_disk_ends_with_the_reason_and_resumes(tmp_path, model, variables):
    with small_disk_at(tmp_path / "disk", "1g") as disk, WebRun(tmp_path, model, variables) as run:
        run.log.symlink_to(disk)
        process = run.begin()
        run.wait_for_more(process)
        browser = run.below_workers("--type=")
        filler = disk / "filler"
        fill(filler)
        assert process.wait(120) not in (0, None)
        run.seconds_until_gone(process)
        assert_all_end(browser)
        assert "No space left on device" in run.output
        before = run.finished()
        filler.unlink()
        ended = run.end(run.begin("--resume"))
        assert [str(episode.key) for episode in ended][: len(before)] == before
