"""Becomes LLaMA-Factory: the caller owns its process group, its log and its deadline."""

import os

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.errors import ConfigError
from rl_agent.update.launch import training_command, training_environment
from rl_agent.update.prepare import TRAIN_FILE
from rl_agent.update.render import setup_of

SUMMARY = "train on what prepare-update wrote (replaces this process by LLaMA-Factory)"


def main(argv: list[str]) -> int:
    parser = plan_parser("train", SUMMARY)
    parser.add_argument("--iteration", type=int, required=True)
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    folder = plan.paths.update_dir(options.iteration)
    yaml = folder / TRAIN_FILE
    if not yaml.is_file():
        raise ConfigError(f"{yaml}: not there; run prepare-update first")
    setup = setup_of(plan)
    command = training_command(setup, yaml, rank=plan.command.rank, environ=os.environ)
    os.execvpe(command[0], command, training_environment(setup, os.environ, folder / "cache"))  # noqa: S606
