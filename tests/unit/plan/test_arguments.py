"""The command line of run.sh: the table of argument combinations, and every way to get one wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import HarnessError, UsageError
from rl_agent.plan.arguments import parse

PATHS = ["--data-path", "/data", "--log-path", "/log"]
NODES = ["--num-nodes", "2", "--rank-weights", "1,3"]


def arguments(*words, **environ):
    return parse([*PATHS, *words], environ)


COMBINATIONS = {
    # phase, eval-interval, rollout-split, nodes, master/worker, debug, resume -> fits or the flag at fault
    "rollout": (["--rollout-split", "train-only"], None),
    "rollout eval": (["--rollout-split", "eval-only"], None),
    "rollout without split": ([], "--rollout-split"),
    "rollout with interval": (["--rollout-split", "train-only", "--eval-interval", "2"], "--eval-interval"),
    "rollout debug": (["--rollout-split", "train-only", "--debug-mode"], None),
    "rollout resume": (["--rollout-split", "train-only", "--resume"], None),
    "rollout nodes resume": (["--rollout-split", "eval-only", *NODES, "--worker", "1", "--resume"], None),
    "rollout nodes": (["--rollout-split", "train-only", *NODES, "--master"], None),
    "rollout nodes without rank": (["--rollout-split", "train-only", *NODES], "--master"),
    "rollout join": (["--join"], None),
    "rollout join debug": (["--join", "--debug-mode"], None),
    "rollout join with split": (["--join", "--rollout-split", "train-only"], "--rollout-split does not go"),
    "rollout join with nodes": (["--join", *NODES, "--worker", "1"], "--num-nodes does not go with --join"),
    "rollout join resume": (["--join", "--resume"], "--resume does not go with --join"),
    "update join": (["--join"], "--join goes with --rl-phase rollout"),
    "both join": (["--eval-interval", "1", "--join"], "--join goes with --rl-phase rollout"),
    "update": ([], None),
    "update with split": (["--rollout-split", "train-only"], "--rollout-split"),
    "update with interval": (["--eval-interval", "2"], "--eval-interval"),
    "update debug": (["--debug-mode"], None),
    "update resume": (["--resume"], None),
    "update nodes": ([*NODES, "--worker", "1"], None),
    "update nodes without weights": (["--num-nodes", "2", "--master"], "--rank-weights"),
    "both": (["--eval-interval", "6"], None),
    "both without interval": ([], "--eval-interval"),
    "both with split": (["--eval-interval", "6", "--rollout-split", "train-only"], "--rollout-split"),
    "both debug": (["--eval-interval", "6", "--debug-mode"], None),
    "both resume": (["--eval-interval", "6", "--resume"], None),
    "both nodes": (["--eval-interval", "6", *NODES, "--worker", "1"], None),
    "both everything": (
        ["--eval-interval", "6", *NODES, "--master", "--debug-mode", "--resume", "--max-iterations", "3"],
        None,
    ),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_flags_go_together_as_documented(name):
    words, at_fault = COMBINATIONS[name]
    phase = name.split()[0]
    if at_fault is None:
        assert arguments("--rl-phase", phase, *words).command.rl_phase == phase
    else:
        with pytest.raises(UsageError, match=at_fault):
            arguments("--rl-phase", phase, *words)


@pytest.mark.parametrize("missing", ["--data-path", "--log-path", "--rl-phase"])
def test_required_flags_are_named_when_missing(missing):
    given_flags = {"--data-path": "/d", "--log-path": "/l", "--rl-phase": "update"}
    words = [word for flag, value in given_flags.items() if flag != missing for word in (flag, value)]
    with pytest.raises(UsageError, match=f"^{missing} is missing"):
        parse(words, {})


UPDATE = ["--rl-phase", "update"]
WRONG = {
    "value missing at the end": (["--rl-phase"], "--rl-phase needs a value"),
    "value missing before a flag": (["--rl-phase", "--resume"], "--rl-phase needs a value"),
    "unknown flag": ([*UPDATE, "--evil-interval", "3"], "did you mean --eval-interval"),
    "unknown word": ([*UPDATE, "surprise"], "unknown argument 'surprise'"),
    "unknown phase": (["--rl-phase", "train"], "not one of rollout, update, both"),
    "unknown split": (["--rl-phase", "rollout", "--rollout-split", "train"], "train-only, eval-only"),
    "no final evaluation": ([*UPDATE, "--no-final-eval"], "goes with --rl-phase both"),
    **{
        f"interval {number}": (["--rl-phase", "both", "--eval-interval", number], "whole number from 1")
        for number in ("0", "-1", "1.5", "²")
    },
    "iterations 0": ([*UPDATE, "--max-iterations", "0"], "whole number from 1"),
    "twice": ([*UPDATE, "--rl-phase", "both"], "--rl-phase is given twice"),
    "value for a switch": ([*UPDATE, "--resume=yes"], "--resume takes no value"),
    "too few weights": (
        [*UPDATE, "--num-nodes", "3", "--rank-weights", "1,2", "--master"], "not 3 comma-separated",
    ),
    "zero weight": (
        [*UPDATE, "--num-nodes", "2", "--rank-weights", "1,0", "--master"], "whole numbers from 1",
    ),
    "master and worker": ([*UPDATE, *NODES, "--master", "--worker", "1"], "exclude each other"),
    "rank too high": ([*UPDATE, *NODES, "--worker", "2"], "not a rank from 0 to 1"),
    "override without value": ([*UPDATE, "+seed"], "write \\+seed=VALUE"),
    "override without key": ([*UPDATE, "=3"], "an override is key=value"),
    "a flag's key": ([*UPDATE, "log_path=/x"], "keep --log-path"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_one_line_that_says_what_is_right(words, message):
    with pytest.raises(UsageError, match=message) as raised:
        arguments(*words)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_flags_take_their_value_after_an_equals_sign_too():
    parsed = arguments("--rl-phase=both", "--eval-interval=3")
    assert (parsed.command.rl_phase, parsed.command.eval_interval) == ("both", 3)


def test_relative_paths_are_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--data-path", "data", "--log-path", "../my log", "--rl-phase", "update"]
    parsed = parse(words, {})
    assert (parsed.data_path, parsed.log_path) == (tmp_path / "data", tmp_path.parent / "my log")


RANKS = {
    "flag wins": (["--worker", "1"], {"RANK": "0", "NODE_RANK": "0"}, 1),
    "RANK before NODE_RANK": ([], {"RANK": "1", "NODE_RANK": "0"}, 1),
    "NODE_RANK": ([], {"NODE_RANK": "1"}, 1),
    "rank 0 is a rank": ([], {"RANK": "0", "NODE_RANK": "1"}, 0),
    "worker 0 is the master": (["--worker", "0"], {}, 0),
}


@pytest.mark.parametrize(("words", "environ", "rank"), RANKS.values(), ids=RANKS)
def test_rank_comes_from_flags_then_RANK_then_NODE_RANK(words, environ, rank):
    assert arguments(*UPDATE, *NODES, *words, **environ).command.rank == rank


def test_a_single_node_ignores_RANK():
    assert arguments("--rl-phase", "update", RANK="7").command.rank == 0


def test_overrides_of_the_environment_come_first():
    parsed = arguments("--rl-phase", "update", "seed=1", HYDRA_OVERRIDES="run_name='a b' ~wandb.entity")
    assert [override.word for override in parsed.overrides] == ["run_name=a b", "~wandb.entity", "seed=1"]


def test_unbalanced_quotes_in_the_environment_are_an_error():
    with pytest.raises(UsageError, match="HYDRA_OVERRIDES is not shell-quoted"):
        arguments("--rl-phase", "update", HYDRA_OVERRIDES="run_name='a")


@given(st.lists(st.text(max_size=12), max_size=6), st.text(max_size=20))
def test_any_words_parse_or_end_in_one_line(words, environment):
    try:
        parse(["--data-path", "/d", "--log-path", "/l", "--rl-phase", "update", *words],
              {"HYDRA_OVERRIDES": environment})  # fmt: skip
    except HarnessError as error:
        assert "\n" not in str(error)
