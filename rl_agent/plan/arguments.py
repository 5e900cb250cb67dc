"""The command line of `scripts/run.sh`: its flags, which of them go together, and its help.

Not argparse: it takes the last of two equal flags without a word, and knows nothing of flags that go together
or of overrides such as `~key`. It would replace `_split` alone.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.overrides.words import (
    COMMAND_LINE,
    ENVIRONMENT,
    Override,
    has_broken_bytes,
    is_override,
    parse_override,
)
from rl_agent.config.plan import Command
from rl_agent.errors import UsageError

HELP = """\
usage: bash scripts/run.sh --data-path PATH --log-path PATH --rl-phase PHASE [options] [key=value ...]

  --data-path PATH       folder with the task files; also holds the Hugging Face cache, if it is writable
  --log-path PATH        folder of this experiment: trajectories, models, logs; created if missing
  --rl-phase PHASE       rollout: collect trajectories     (needs --rollout-split)
                         update:  train on the recorded trajectories, until nothing is new
                         both:    collect, evaluate, train (needs --eval-interval)
  --eval-interval N      evaluate where iteration % N == 1; 1 evaluates every iteration
  --rollout-split SPLIT  train-only | eval-only
  --max-iterations N     stop after N iterations, counted from this start: --resume completes the same N, a
                         later start without it runs N more. Default: no limit; --rl-phase update ends when
                         it has read every trajectory
  --no-final-eval        do not evaluate again after the last of --max-iterations updates
  --resume               continue the unfinished iteration of the last run in this log path
  --debug-mode           use the running engine at engine.url or engine.port; never start or stop one
  --dry-run              check everything and print the plan; start nothing, write nothing
  --verbose              with --dry-run: print every configuration key and variable, too
  --num-nodes N          number of nodes that share the log path (default 1)
  --rank-weights W,...   one whole number per node: its share of the rollout; needed if N > 1
  --master | --worker R  rank 0, or rank R; else the variable RANK, else NODE_RANK
  --join                 with --rl-phase rollout: help the run of this log path collect, until stopped
  --help                 this text

  key=value  +key=value  ++key=value  ~key      change, add or delete a configuration key (Hydra); also taken,
                         shell-quoted, from the variable HYDRA_OVERRIDES. docs/reference/configuration.md
                         lists every key. A value that is not a number, list, dict, ... is a string.

examples
  # 1. the whole loop, evaluating every 6 iterations
  bash scripts/run.sh --data-path /home/user --log-path /home/user/exp1 --rl-phase both --eval-interval 6
  # 2. collect training trajectories only
  bash scripts/run.sh --data-path /home/user --log-path /home/user/exp1 --rl-phase rollout \\
      --rollout-split train-only env_config.train_tasks=my_tasks.jsonl
  # 3. train on the recorded trajectories
  bash scripts/run.sh --data-path /home/user --log-path /home/user/exp1 --rl-phase update
  # 4. the whole loop on two nodes (one command per node), the second with twice the share
  bash scripts/run.sh --data-path /home/user --log-path /shared/exp1 --rl-phase both --eval-interval 6 \\
      --num-nodes 2 --rank-weights 1,2 --master      # and on the other node: --worker 1
  # 5. an idle machine helps with the rollouts of that run; Ctrl+C returns its unfinished work
  bash scripts/run.sh --data-path /home/user --log-path /shared/exp1 --rl-phase rollout --join
"""

_VALUED = (
    "--data-path",
    "--log-path",
    "--rl-phase",
    "--eval-interval",
    "--rollout-split",
    "--max-iterations",
    "--num-nodes",
    "--rank-weights",
    "--worker",
)
_SWITCHES = (
    "--resume",
    "--debug-mode",
    "--dry-run",
    "--verbose",
    "--master",
    "--join",
    "--no-final-eval",
    "--help",
)
_OF_THE_RUN = (
    "--rollout-split",
    "--max-iterations",
    "--resume",
    "--num-nodes",
    "--rank-weights",
    "--master",
    "--worker",
)
"""Flags whose values `--join` takes from the run that it joins."""
_PHASES = ("rollout", "update", "both")
_SPLITS = ("train-only", "eval-only")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line of `run.sh`, with every rule between flags checked."""

    data_path: Path
    log_path: Path
    command: Command
    dry_run: bool
    verbose: bool
    """True if a dry run prints every key."""
    overrides: tuple[Override, ...]


def wants_help(argv: Sequence[str]) -> bool:
    return "--help" in argv or "-h" in argv


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Arguments:
    """Read `argv` and HYDRA_OVERRIDES; raises `UsageError` with one line."""
    flags, words = _split(argv)
    overrides = [parse_override(word, ENVIRONMENT) for word in _environment_words(environ)]
    overrides += [parse_override(word, COMMAND_LINE) for word in words]
    phase = _choice(flags, "--rl-phase", _PHASES)
    _only_with(flags, "--eval-interval", phase, "both")
    if "--no-final-eval" in flags and phase != "both":
        raise UsageError(f"--no-final-eval goes with --rl-phase both, not with --rl-phase {phase}")
    join = _join(flags, phase)
    if not join:
        _only_with(flags, "--rollout-split", phase, "rollout")
    split = _choice(flags, "--rollout-split", _SPLITS) if "--rollout-split" in flags else None
    num_nodes = _count(flags, "--num-nodes") or 1
    data_path, log_path = _path(flags, "--data-path"), _path(flags, "--log-path")
    command = Command.model_validate(
        {
            "rl_phase": phase,
            "eval_interval": _count(flags, "--eval-interval"),
            "rollout_split": split,
            "max_iterations": _count(flags, "--max-iterations"),
            "final_eval": phase == "both" and "--no-final-eval" not in flags,
            "debug_mode": "--debug-mode" in flags,
            "resume": "--resume" in flags,
            "num_nodes": num_nodes,
            "rank": _rank(flags, environ, num_nodes),
            "rank_weights": _rank_weights(flags, num_nodes),
            "join": join,
            "overrides": tuple(override.word for override in overrides),
        }
    )
    for override in overrides:
        if override.key in ("data_path", "log_path"):
            flag = "--" + override.key.replace("_", "-")
            raise UsageError(f"{override.key} is set twice: {flag} and {override.word!r}; keep {flag}")
    if "--verbose" in flags and "--dry-run" not in flags:
        raise UsageError("--verbose goes with --dry-run")
    shown = {"dry_run": "--dry-run" in flags, "verbose": "--verbose" in flags}
    return Arguments(data_path, log_path, command, **shown, overrides=tuple(overrides))


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Flags with their values ('' for switches), and the words that are overrides."""
    flags: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if is_override(word):
            words.append(word)
            continue
        flag, has_value, value = word.partition("=")
        if flag not in _VALUED + _SWITCHES:
            raise UsageError(_unknown(word))
        if flag in flags:
            raise UsageError(f"{flag} is given twice")
        if flag in _SWITCHES and has_value:
            raise UsageError(f"{flag} takes no value, got {value!r}")
        if flag in _VALUED and not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{flag} needs a value")
            value = rest.pop(0)
        flags[flag] = value
    return flags, words


def _unknown(word: str) -> str:
    from rl_agent.system.flag_parser import near_flag

    hint = near_flag(word, _VALUED + _SWITCHES) or "; --help lists the flags; overrides are key=value"
    return f"unknown argument {word!r}{hint}"


def _environment_words(environ: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(environ.get(ENVIRONMENT, ""))
    except ValueError as error:
        raise UsageError(f"{ENVIRONMENT} is not shell-quoted words: {error}") from error


def _required(flags: dict[str, str], flag: str) -> str:
    if flag not in flags:
        raise UsageError(f"{flag} is missing (--help shows how it is used)")
    return flags[flag]


def _path(flags: dict[str, str], flag: str) -> Path:
    text = _required(flags, flag)
    if not text or any(character < " " for character in text) or has_broken_bytes(text):
        raise UsageError(f"{flag} {text!r} is not a path: it is empty, not UTF-8 or has control characters")
    # resolve() would follow links, which differ between nodes.
    return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100


def _choice(flags: dict[str, str], flag: str, choices: tuple[str, ...]) -> str:
    value = _required(flags, flag)
    if value not in choices:
        raise UsageError(f"{flag} {value!r} is not one of {', '.join(choices)}")
    return value


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _count(flags: dict[str, str], flag: str) -> int | None:
    if flag not in flags:
        return None
    count = _whole(flags[flag])
    if not count:
        raise UsageError(f"{flag} {flags[flag]!r} is not a whole number from 1")
    return count


def _only_with(flags: dict[str, str], flag: str, phase: str, owner: str) -> None:
    """Check a flag that one phase requires and the others do not take."""
    if phase == owner and flag not in flags:
        raise UsageError(f"--rl-phase {phase} needs {flag}")
    if phase != owner and flag in flags:
        raise UsageError(f"{flag} goes with --rl-phase {owner}, not with --rl-phase {phase}")


def _join(flags: dict[str, str], phase: str) -> bool:
    if "--join" not in flags:
        return False
    if phase != "rollout":
        raise UsageError(f"--join goes with --rl-phase rollout, not with --rl-phase {phase}")
    for flag in _OF_THE_RUN:
        if flag in flags:
            raise UsageError(f"{flag} does not go with --join: the run that is joined has it already")
    return True


def _rank_weights(flags: dict[str, str], num_nodes: int) -> tuple[int, ...]:
    if "--rank-weights" not in flags:
        if num_nodes > 1:
            raise UsageError(f"--num-nodes {num_nodes} needs --rank-weights with {num_nodes} numbers")
        return (1,)
    text = flags["--rank-weights"]
    weights = [_whole(part) for part in text.split(",")]
    if len(weights) != num_nodes or not all(weights):
        raise UsageError(
            f"--rank-weights {text!r} is not {num_nodes} comma-separated whole numbers from 1,"
            f" one for each of --num-nodes {num_nodes}"
        )
    return tuple(weight for weight in weights if weight)


def _rank(flags: dict[str, str], environ: Mapping[str, str], num_nodes: int) -> int:
    """Return the rank of this node: flags, else RANK, else NODE_RANK; a single node needs none."""
    if "--master" in flags and "--worker" in flags:
        raise UsageError("--master and --worker exclude each other")
    if "--master" in flags:
        return 0
    if "--worker" in flags:
        return _rank_in(flags["--worker"], "--worker", num_nodes)
    if num_nodes == 1:
        return 0
    for variable in ("RANK", "NODE_RANK"):
        if environ.get(variable):
            return _rank_in(environ[variable], variable, num_nodes)
    raise UsageError(f"--num-nodes {num_nodes} needs --master, --worker R, or the variable RANK or NODE_RANK")


def _rank_in(text: str, source: str, num_nodes: int) -> int:
    rank = _whole(text)
    if rank is None or rank >= num_nodes:
        raise UsageError(
            f"{source} {text!r} is not a rank from 0 to {num_nodes - 1} (--num-nodes {num_nodes})"
        )
    return rank
