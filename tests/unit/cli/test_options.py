"""The options that many verbs take: what is wrong with one is a line that names it."""

import pytest

from rl_agent.cli._options import log_folder, member_or_alone, read_plan, read_token
from rl_agent.errors import ConfigError, UsageError
from tests.support.rollout_setup import make_plan


def test_a_log_path_is_where_its_links_lead(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert log_folder(tmp_path / "link" / ".") == tmp_path.resolve()


@pytest.mark.parametrize("kind", ["absent", "a file", "a loop of links", "too long"])
def test_a_log_path_that_is_no_folder_is_named(tmp_path, kind):
    path = tmp_path / "log"
    if kind == "a file":
        path.write_text("")
    elif kind == "a loop of links":
        path.symlink_to(path)
    elif kind == "too long":
        path = tmp_path / ("x" * 5000)
    with pytest.raises(ConfigError, match=r"--log-path .*: is not a folder"):
        log_folder(path)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b"[" * 10**5], ids=repr)
def test_a_plan_that_cannot_be_read_is_named_in_one_line(tmp_path, content):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--plan .*plan\.json cannot be read: ") as refused:
        read_plan(path)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < len(str(path)) + 300


def test_the_token_is_that_of_the_file_else_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "of the environment")
    assert read_token(None) == "of the environment"
    path = tmp_path / "token"
    path.write_text("first\nsecond\n")
    path.chmod(0o600)
    assert read_token(path) == "first"
    monkeypatch.delenv("RL_AGENT_POOL_TOKEN")
    assert read_token(None) is None


def test_a_token_file_that_is_not_there_is_a_mistake_of_the_command_line(tmp_path):
    with pytest.raises(UsageError, match=r"--token-file: .*none"):
        read_token(tmp_path / "none")


def test_a_verb_called_without_a_member_is_the_only_node_of_its_run(tmp_path):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1")
    plan.write(tmp_path / "plan.json")
    with member_or_alone(None, tmp_path / "plan.json") as alone:
        assert alone.is_master
        with member_or_alone(alone, tmp_path / "not read") as same:
            assert same is alone
