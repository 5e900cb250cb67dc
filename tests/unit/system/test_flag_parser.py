"""A mistake on a command line is one line that names the flag and what is near it."""

from pathlib import Path

import pytest

from rl_agent.cli.__main__ import main, people_verbs
from rl_agent.errors import EXIT_USAGE, UsageError
from rl_agent.system.flag_parser import FlagParser


def parser():
    flags = FlagParser(prog="x")
    flags.add_argument("--trace", type=int)
    flags.add_argument("--add", action="append")
    flags.add_argument("--place", type=Path)
    flags.add_argument("rest", nargs="*")
    return flags


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trac", "1"], "unknown argument '--trac'; did you mean --trace?; see --help"),
        (["--zzzz"], "unknown argument '--zzzz'; see --help"),
        (["a", "--zzzz", "", " "], "unknown argument '--zzzz'; see --help"),
        (["--trace", "x"], "--trace: invalid int value: 'x'; see --help"),
        (["--place", ""], "--place: is empty: give a path; see --help"),
        (["--trace", "1", "--trace=2"], "--trace is given twice; see --help"),
    ],
)
def test_a_mistake_is_one_line(words, line, capsys):
    with pytest.raises(UsageError) as error:
        parser().parse_args(words)
    assert str(error.value) == line
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", ["-1e-3", "-2.E+4", "-.5e1", "-7", "-0.25"])
def test_a_negative_number_is_a_value_in_every_form(number):
    flags = FlagParser(prog="x")
    flags.add_argument("--least", type=float)
    assert flags.parse_args(["--least", number]).least == float(number)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--log-pth", "x"], "unknown argument '--log-pth'; did you mean --log-path?; {missing}"),
        (["--log-pth=x"], "unknown argument '--log-pth=x'; did you mean --log-path?; {missing}"),
        (["--trace", "1"], "{missing}"),
    ],
)
def test_a_wrong_flag_is_named_also_where_a_required_one_is_missing(words, line):
    flags = FlagParser(prog="x")
    flags.add_argument("--log-path", required=True)
    flags.add_argument("--trace")
    with pytest.raises(UsageError) as error:
        flags.parse_args(words)
    assert str(error.value) == line.format(
        missing="the following arguments are required: --log-path; see --help"
    )


@pytest.mark.parametrize("word", ["", " ", "\n"])
def test_a_word_of_nothing_is_an_unknown_argument(word):
    with pytest.raises(UsageError, match=r"^unknown argument '"):
        FlagParser(prog="x").parse_args([word])


def test_repeatable_flags_repeat_and_words_after_two_dashes_are_ignored():
    options = parser().parse_args(["--add", "1", "--add", "2", "--trace", "1", "--", "--trace", "2"])
    assert (options.add, options.trace, options.rest) == (["1", "2"], 1, ["--trace", "2"])


# The flags of `run` are those of run.sh, which it becomes: tests/shell/test_bad_input.py has them.
@pytest.mark.parametrize("verb", [verb for verb in people_verbs() if verb != "run"])
def test_every_verb_says_in_one_line_which_flag_it_does_not_know(verb, capsys):
    given = {"trajectories": ["list", "--log-path", "x"], "pool": ["status"], "webgym": ["--source", "x"]}
    words = {"doctor": ["--log-path", "x"], "report": ["--log-path", "x"], "rollback": ["--log-path", "x"]}
    needed = given.get(verb, []) + words.get(verb, [])
    needed += {"webgym": ["--out", "x"], "openr1": ["--source", "x", "--out", "x"]}.get(verb, [])
    assert main([verb, *needed, "--nope"]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert err.startswith(f"{verb}: ") and "--nope" in err
    assert len(err.splitlines()) == 1


def test_a_verb_near_a_known_one_is_named(capsys):
    assert main(["trajectorie"]) == EXIT_USAGE
    assert capsys.readouterr().err == "rl_agent: no verb 'trajectorie'; did you mean trajectories?\n"
    main(["--verbose"])
    assert "; there are doctor, " in capsys.readouterr().err  # and no verb that only run.sh calls
