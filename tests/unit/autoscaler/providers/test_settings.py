"""Settings of a provider of machines, from words and a file, refused by their keys."""

from contextlib import nullcontext

import pytest

from rl_agent.autoscaler.providers.command import CommandSettings
from rl_agent.autoscaler.providers.settings import read_settings
from rl_agent.autoscaler.providers.slurm import SlurmSettings
from rl_agent.errors import ConfigError, UsageError

OWN = {"manager": "http://127.0.0.1:5000", "fleet": "rl-1"}
WORDS = ("start=run {name}", "stop=end {name}", "list=show")


def read(*words, file=None):
    return read_settings(CommandSettings, file, words, **OWN)


def read_beside(usual, words):
    """The settings by `words`, and by `usual` for every other key."""
    keys = {word.partition("=")[0] for word in words}
    return read(*words, *(word for word in usual if word.partition("=")[0] not in keys))


def test_words_count_over_the_file(tmp_path):
    file = tmp_path / "provider.yaml"
    file.write_text("start: old {name}\nstop: end {name}\nlist: show\nshell: true\n")
    read_back = read("start=new {name}", file=file)
    assert (read_back.start, read_back.stop, read_back.shell, read_back.fleet) == (
        "new {name}",
        "end {name}",
        True,
        "rl-1",
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("start=run {nme}",), "start: .*{nme} is not a field"),
        (("stop=end",), "stop: .*{name} is missing"),
        (("list= ",), "list: .*expected a command line"),
        (("colour=red",), "^colour: there is no such setting; the provider's settings are command_timeout_s"),
        (("shel=1",), "^shel: there is no such setting; did you mean shell[?]; the"),
        (("command_timeout_s=0",), "^command_timeout_s: expected greater than 0$"),
        (("shell=maybe",), "^shell: expected a valid boolean"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(words, named):
    with pytest.raises(ConfigError, match=named):
        read_beside(WORDS, words)


@pytest.mark.parametrize(
    ("word", "named"), [("start", "expected KEY=VALUE"), ("fleet=mine", "fleet: is an option of")]
)
def test_what_is_no_setting_of_a_provider_is_refused(word, named):
    with pytest.raises(UsageError, match=named):
        read(*WORDS, word)


@pytest.mark.parametrize("content", [None, "[1", "- a", "\0"])
def test_a_file_that_holds_no_settings_is_named(tmp_path, content):
    file = tmp_path / "provider.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"--provider-file .*provider\.yaml"):
        read(*WORDS, file=file)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("start=no-such-program {name}",), "start: no-such-program"),
        (("stop=/nowhere/end {name}",), "stop: /nowhere/end"),
        (("start={name}/boot {name}",), ""),
        (("start=$CLOUD make {name}", "shell=1"), ""),
    ],
)
def test_a_program_that_this_machine_lacks_is_found_by_its_setting(words, missing):
    settings = read_beside(["start=true {name}", "stop=true {name}", "list=true"], words)
    with pytest.raises(ConfigError, match=f"^{missing}: this machine") if missing else nullcontext():
        settings.check_programs()


def test_slurm_needs_its_programs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r": sbatch: this machine has no such program"):
        read_settings(SlurmSettings, None, (), **OWN).check_programs()


@pytest.mark.parametrize("option", ["--name w", "--kind=spot", "--price 2", "--manager http://10.0.0.1:5000"])
def test_what_is_added_for_each_job_of_slurm_is_refused_before_one_starts(option):
    with pytest.raises(ConfigError, match=r"^worker: --\w+ is added for each job by `pool scale`, so leave"):
        read_settings(SlurmSettings, None, (f"worker=--notice auto {option}",), **OWN)


def test_a_job_of_slurm_may_begin_at_an_address_and_follow_a_file():
    words = ("worker=--manager http://10.0.0.1:5000 --manager-file /shared/pool.url",)
    assert read_settings(SlurmSettings, None, words, **OWN).worker
