"""Settings of a provider of machines, from words and a file, refused by their keys."""

import pytest

from rl_agent.errors import ConfigError, UsageError
from rl_agent.pool.scale.providers.settings import CommandSettings, read_settings

OWN = {"manager": "http://127.0.0.1:5000", "fleet": "rl-1"}
WORDS = ("start=run {name}", "stop=end {name}", "list=show")


def read(*words, file=None):
    return read_settings(CommandSettings, file, words, **OWN)


def test_words_count_over_the_file(tmp_path):
    file = tmp_path / "provider.yaml"
    file.write_text("start: old {name}\nstop: end {name}\nlist: show\nshell: true\n")
    found = read("start=new {name}", file=file)
    assert (found.start, found.stop, found.shell, found.fleet) == ("new {name}", "end {name}", True, "rl-1")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("start=run {nme}",), "start: .*{nme} is no field"),
        (("stop=end",), "stop: .*{name} is missing"),
        (("list= ",), "list: .*expected a command line"),
        (("colour=red",), "colour: .*the provider's settings are command_timeout_s, list, shell"),
        (("command_timeout_s=0",), "command_timeout_s: "),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(words, named):
    keys = {word.partition("=")[0] for word in words}
    with pytest.raises(ConfigError, match=named):
        read(*words, *(word for word in WORDS if word.partition("=")[0] not in keys))


@pytest.mark.parametrize(
    ("word", "named"), [("start", "expected KEY=VALUE"), ("fleet=mine", "fleet: is said by")]
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
