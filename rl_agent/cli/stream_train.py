"""Becomes the streaming trainer: the caller owns its process group, its log and its restarts."""

import os

from rl_agent.cli._plan_file import plan_parser, read_plan

SUMMARY = "train along with the rollouts of a run (replaces this process by the trainer of trainer=grpo)"
EXAMPLE = """example:
  python -m rl_agent.cli stream-train --plan runs/r1/plan.json
"""


def main(argv: list[str]) -> int:
    plan = read_plan(plan_parser("stream-train", SUMMARY, EXAMPLE).parse_args(argv).plan)

    from rl_agent.pool import of_run
    from rl_agent.trainer.launch import trainer_command, trainer_environment, write_settings

    settings = write_settings(plan, manager=of_run.wait_for_manager(plan))
    command = trainer_command(plan, settings)
    environment = trainer_environment(plan, os.environ)
    # Of a trainer of one process; torchrun gives each of its processes its own.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment |= alone | {"MASTER_PORT": "0"}  # any free one: nobody else has to know it
    os.execvpe(command[0], command, environment)  # noqa: S606
