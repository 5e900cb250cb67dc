"""A fault of an environment server is one line before a run."""

import pytest

from rl_agent.env.remote.environments import Environments
from rl_agent.errors import ConfigError, MachineError
from rl_agent.types import Task
from tests.integration.rollout.test_environments_elsewhere import KIND_WORDS, TASKS, config, env_server


def test_a_faulty_server_is_refused_before_the_run_in_one_line(tmp_path):
    def problem(*words, tasks=TASKS, kind="obeying"):
        with pytest.raises(ConfigError) as error:
            Environments(config(tmp_path, *words)).check({kind}, tasks)
        assert "\n" not in str(error.value)
        return error.value

    with env_server(tmp_path, *KIND_WORDS) as (url, process):
        here = f"servers=[{url}]"
        other = tmp_path / "other.token"
        other.write_text("wrong\n")
        other.chmod(0o600)
        assert "refuses the token" in str(problem(here, f"servers_token_file={other}"))
        bad = [*TASKS, Task("bad-one", "bad", "obeying", "easy")]
        refused = problem(here, tasks=bad)
        assert "task bad-one: the prompt is bad" in str(refused) and refused.task_id == "bad-one"
        assert "has no kind 'game'" in str(problem(here, "+kinds.game=games:Game", kind="game"))
        elsewhere = problem(here, "+kinds.never_closing=other:Class", kind="never_closing")
        assert "make them equal" in str(elsewhere)
        assert "cannot be combined with env_config.servers" in str(problem(here, "workers=2"))
        assert "kwargs.obeying.greeting differs" in str(problem(here, "+kwargs.obeying.greeting=hi"))
        process.kill()
        process.wait()
        gone = problem(here)
        assert isinstance(gone, MachineError)
        assert "does not answer" in str(gone)
    with (
        env_server(tmp_path, *KIND_WORDS, "+kwargs.obeying.greeting=hello") as (url, _),
        pytest.raises(ConfigError, match=r"kwargs\.obeying\.greeting differs; give the run"),
    ):
        Environments(config(tmp_path, f"servers=[{url}]", "+kwargs.obeying.greeting=hi")).check({"obeying"})
    with pytest.raises(ConfigError, match="named twice"):
        config(tmp_path, "servers=[http://a:1,http://a:1/]")
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        config(tmp_path, "servers=[a:1]")
