"""Every command shows how it is used."""

import argparse
import ast
import inspect
from importlib import metadata
from pathlib import Path

import pytest

from rl_agent.cli.__main__ import main, module_of, verbs
from rl_agent.cli._numbers import seconds, whole_from_1
from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.flag_parser import FlagParser

SCRIPTS = [
    *sorted((PROJECT_ROOT / "benchmarks").rglob("*.py")),
    *sorted((PROJECT_ROOT / "data").glob("*.py")),
]


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_every_verb_ends_with_an_example_of_it(verb, capsys):
    try:
        main([verb, "--help"])
    except SystemExit as end:
        assert end.code == 0
    _, example, examples = capsys.readouterr().out.rpartition("\nexample")
    assert example
    assert f"rl-agent {verb}" in examples or (verb == "plan" and "bash scripts/run.sh" in examples)


class Stop(Exception):
    """The parser of a verb is known."""


def options_of(parser):
    """Every option and positional argument of a parser and of its actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from options_of(verb)
        else:
            yield action


@pytest.fixture(scope="module")
def options():
    """The options of every verb that argparse reads."""
    names = {}

    def stop(parser, *given):
        names[verb] = list(options_of(parser))
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlagParser, "parse_known_args", stop)
        for verb in verbs():
            if verb not in ("plan", "run"):  # have a text of their own
                wanted = inspect.signature(module_of(verb).main).parameters
                with pytest.raises(Stop):
                    module_of(verb).main([], **dict.fromkeys(list(wanted)[1:]))
    return names


def test_every_option_of_every_verb_says_what_it_is(options):
    assert not {
        verb: unsaid
        for verb, actions in options.items()
        if (unsaid := [action.option_strings or action.dest for action in actions if not action.help])
    }


def test_a_log_path_is_called_so_in_every_verb(options):
    called = {}
    for actions in options.values():
        for action in actions:
            if "--log-path" in action.option_strings:
                called.setdefault(action.help.partition(";")[0], []).append(action)
    assert list(called) == ["log path of the run"]


def test_the_help_shows_what_kind_of_value_a_flag_takes():
    parser = FlagParser(prog="x")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=whole_from_1)
    parser.add_argument("--drain-s", type=seconds)
    parser.add_argument("--name")
    flags = "[-h] [--out PATH] [--count N] [--drain-s SECONDS] [--name NAME]"
    assert parser.format_usage() == f"usage: x {flags}\n"


def test_no_script_reads_its_command_line_in_another_way():
    scripts = [*SCRIPTS, *sorted((PROJECT_ROOT / "rl_agent" / "cli").rglob("*.py"))]
    assert not [path for path in scripts if "argparse.ArgumentParser(" in path.read_text()]


@pytest.mark.parametrize("path", [path for path in SCRIPTS if "FlagParser(" in path.read_text()], ids=str)
def test_the_help_of_every_script_shows_a_call_of_it(path):
    text = path.read_text()
    assert "description=__doc__" in text
    assert f"python {path.relative_to(PROJECT_ROOT)}" in (ast.get_docstring(ast.parse(text)) or "")


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rl-agent {metadata.version('rl_agent')}\n"
