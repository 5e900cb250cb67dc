"""The provider `command` runs what its templates say: no more words, no longer, and nothing by chance."""

import os
import time

import pytest

from rl_agent.autoscaler.providers.command import CommandProvider, CommandSettings, machines_in, words_of
from rl_agent.autoscaler.providers.settings import read_settings
from rl_agent.errors import ConfigError
from rl_agent.pool.demand.records import EngineKind, ProviderError
from rl_agent.system.processes import ProcessId
from tests.support.pool_setup import until

KIND = EngineKind("spot", 1.25, 0, 4, 60.0)
OWN = {"manager": "http://127.0.0.1:5000", "fleet": "rl-1"}


def settings(*words, file=None):
    return read_settings(CommandSettings, file, words, **OWN)


def provider(**given):
    plain = {"start": "true {name}", "stop": "true {name}", "list": "true", "shell": False}
    return CommandProvider(CommandSettings(**{**OWN, **plain, "command_timeout_s": 10.0, **given}))


@pytest.mark.parametrize("name", ["a b", "$(touch x)", "; touch x", "'", "-rf", "{kind}"])
def test_a_field_is_a_part_of_one_word_whatever_is_in_it(name):
    fields = {"name": name, "kind": "spot"}
    words = words_of("run --tag Name={name} {kind}", fields, is_shell=False)
    assert words == ["run", "--tag", f"Name={name}", "spot"]


async def test_a_shell_sees_fields_quoted(tmp_path):
    line = f"printf '%s\\n' {{name}} > {tmp_path}/seen"
    await provider(start=line, shell=True).start("$(echo no) '; ls", KIND)
    assert (tmp_path / "seen").read_text() == "$(echo no) '; ls\n"


def test_braces_that_are_no_field_stay_as_the_cloud_wants_them():
    template = "aws --tag-specifications 'ResourceType=instance,Tags=[{Key=Name,Value={name}}]'"
    assert words_of(template, {"name": "rl-1"}, is_shell=False)[-1].endswith("[{Key=Name,Value=rl-1}]")


async def test_commands_get_the_fields_in_their_environment(tmp_path):
    line = f"env | grep RL_AGENT_ > {tmp_path}/seen # {{name}}"
    await provider(start=line, shell=True).start("rl-1-7", KIND)
    seen = (tmp_path / "seen").read_text().split()
    assert {f"RL_AGENT_{field}" for field in ("NAME=rl-1-7", "KIND=spot", "PRICE=1.25", "FLEET=rl-1")} <= {
        *seen
    }


@pytest.mark.parametrize(
    ("output", "machines"),
    [
        ("", []),
        ("a\nb\n", [("a", "", "running"), ("b", "", "running")]),
        ("a\tPROVISIONING\nb\tRUNNING\tspot\n", [("a", "", "pending"), ("b", "spot", "running")]),
        ("a terminated\nb shutting-down\n", [("b", "", "stopping")]),
        ("[]", []),
        ('["a"]', [("a", "", "running")]),
        ('[{"name": "a", "state": "pending", "kind": "h100"}]', [("a", "h100", "pending")]),
        ('[{"name": "a", "state": null}]', [("a", "", "running")]),
    ],
)
def test_a_list_is_lines_or_json(output, machines):
    assert [(machine.name, machine.kind, str(machine.state)) for machine in machines_in(output)] == machines


@pytest.mark.parametrize("output", ["[1]", '{"a": 1}', "[", '[{"state": "running"}]'])
def test_a_list_that_cannot_be_read_is_an_error_and_not_an_empty_list(output):
    with pytest.raises(ProviderError, match="list: "):
        machines_in(output)


async def test_a_failure_says_the_status_and_the_last_line():
    with pytest.raises(ProviderError, match=r"^start: bash: exit status 3: no quota$"):
        await provider(start="echo one >&2; echo no quota >&2; exit 3 # {name}", shell=True).start("a", KIND)
    with pytest.raises(ProviderError, match=r"^list: /nowhere/cli: .*No such file"):
        await provider(list="/nowhere/cli").machines()


async def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path):
    line = f"sleep 100 & echo $! > {tmp_path}/pid; wait # {{name}}"
    with pytest.raises(ProviderError, match=r"no end after 0\.5 s"):
        await provider(start=line, shell=True, command_timeout_s=0.5).start("a", KIND)
    left = ProcessId.of(int((tmp_path / "pid").read_text()))
    await until(lambda: not left.is_running, 20)  # the kernel ends it a moment after the signal


async def test_what_a_command_leaves_running_holds_nothing_up(tmp_path):
    line = f"setsid sleep 30 & echo $! > {tmp_path}/pid # {{name}}"
    began = time.monotonic()
    await provider(start=line, shell=True).start("a", KIND)
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert time.monotonic() - began < 25


async def test_the_token_is_in_the_environment_of_start_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "secret")
    calls = ("start", "stop", "list")
    lines = {key: f"env | grep -c TOKEN=secret >> {tmp_path}/{key}; true" for key in calls}
    lines |= {key: f"{lines[key]} # {{name}}" for key in ("start", "stop")}
    cloud = provider(**lines, shell=True)
    await cloud.start("rl-1-1", KIND)
    await cloud.stop("rl-1-1")
    await cloud.machines()
    assert [(tmp_path / key).read_text() for key in calls] == ["1\n", "0\n", "0\n"]


@pytest.mark.parametrize(
    "line", ["stop=end ${name}", "stop=end {NAME}", "stop=end", "stop=end {name} '", "stop="]
)
def test_a_template_that_would_name_no_machine_is_refused(line):
    with pytest.raises(ConfigError, match=r"^stop: "):
        settings("start=true {name}", line, "list=true", "shell=true")


def test_a_list_names_no_single_machine():
    with pytest.raises(ConfigError, match=r"^list: .*\{name\} is not a field; there are manager, fleet"):
        settings("start=true {name}", "stop=true {name}", "list=ls {name}")
