"""The verb `manager`: whose settings a manager has, and who learns its address."""

import asyncio
import os

import pytest

from rl_agent.cli import manager as verb
from rl_agent.cli.__main__ import main
from rl_agent.errors import ConfigError, UsageError
from rl_agent.pool import manager, run_pool
from tests.support.rollout_setup import make_plan

URL = "http://127.0.0.1:4321"


@pytest.fixture
def served(monkeypatch):
    """Arguments with which the pool was served; it listens at `URL` and ends at once."""
    calls = []

    async def serve(config, on_listening, versions, leaving):
        calls.append(config)
        on_listening(URL)

    monkeypatch.setattr(manager, "serve", serve)
    monkeypatch.setattr(verb, "serve_until_told", lambda serve: asyncio.run(serve(asyncio.Event())))
    return calls


@pytest.fixture
def plan(tmp_path):
    plan = make_plan(tmp_path, "pool=elastic", engine_url="null")
    plan.paths.run_dir(plan.run_id).mkdir(parents=True)
    plan.write(tmp_path / "plan.json")
    return plan


def test_its_own_settings_are_words_and_its_address_is_printed_and_written(served, tmp_path, capsys):
    assert verb.main(["port=5001", "--url-file", str(tmp_path / "url")]) == 0
    assert [config.port for config in served] == [5001]
    assert capsys.readouterr().out == URL + "\n"
    assert (tmp_path / "url").read_text() == URL + "\n"


def test_that_of_a_run_has_the_runs_settings_and_tells_its_nodes(served, plan, tmp_path):
    assert verb.main(["--plan", str(tmp_path / "plan.json")]) == 0
    assert [config.journal for config in served] == [run_pool.manager_settings(plan).journal]
    assert run_pool.manager_url(plan) == URL


def test_a_run_has_all_settings_already(served, plan, tmp_path):
    with pytest.raises(UsageError, match="leave KEY=VALUE out"):
        verb.main(["port=5001", "--plan", str(tmp_path / "plan.json")])
    assert not served


def test_a_setting_that_there_is_not_starts_no_manager(served):
    with pytest.raises(ConfigError, match="prot"):
        verb.main(["prot=5001"])
    assert not served


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["manager", "port=0", "--url-file", "pool.url", "no_such_key=1"], "no_such_key"),
        (["env-server", "server_size=2", "--listen", "127.0.0.1:0", "no_such_key=1"], "no_such_key"),
    ],
)
def test_words_after_an_option_are_read_as_those_before_it(capsys, words, key):
    assert main(words) != 0
    log = capsys.readouterr().err
    assert key in log and "unknown argument" not in log


def test_its_address_takes_the_place_of_files_alone(served, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # a device would be lost if this failed
    with pytest.raises(ConfigError, match=r"^--url-file .*: is a folder, a device or a pipe"):
        verb.main(["--url-file", str(tmp_path / "pipe")])
    assert not served
