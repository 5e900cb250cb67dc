"""A real web rollout whose engine and worker sleep, and whose driver dies."""

import os
import signal

import pytest

from rl_agent.env.guard import has_word
from tests.integration.real_run import LIMIT_S
from tests.integration.rollout.test_environments_elsewhere import assert_all_end

from .attacked_run import EPISODES, WebRun, frozen, make_model, vision_variables

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
