"""Becomes the streaming trainer: the caller owns its process group, its log and its restarts."""

import argparse
import logging
import os

from rl_agent.cli._options import add_place, plan_parser, read_plan

SUMMARY = "train along with the rollouts of a run (replaces this process by the trainer of trainer=grpo)"
EXAMPLE = """examples:
  rl-agent stream-train --plan runs/r1/plan.json
  rl-agent stream-train --plan runs/r1/plan-1-host.json \\
      --start 1 --nodes 2 --node-rank 1 --master 10.0.0.1:29500

With several nodes, each calls this verb with its own rank and the same number of the start.
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("stream-train", SUMMARY, EXAMPLE)
    parser.add_argument(
        "--start", type=int, default=0, help="number of this start, +1 per restart (default 0)"
    )
    add_place(parser)
    return parser


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)

    from rl_agent.pool import run_pool
    from rl_agent.trainer.grpo.launch import (
        await_settings,
        trainer_command,
        trainer_environment,
        verify_models,
        write_settings,
    )
    from rl_agent.trainer.llamafactory.launch import rendezvous_of

    place = rendezvous_of(options.nodes, options.node_rank, options.master)
    plan = read_plan(options.plan)
    if place.node_rank == 0:
        settings = write_settings(plan, manager=run_pool.wait_for_manager(plan), start=options.start)
    else:
        settings = await_settings(plan, options.start)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    verify_models(settings)
    command = trainer_command(plan, settings, options.nodes, place)
    environment = trainer_environment(plan, os.environ, options.nodes)
    # Of a trainer of one process; torchrun gives each of its processes its own.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment |= alone | {"MASTER_PORT": "0"}  # any free one: nobody else has to know it
    os.execvpe(command[0], command, environment)  # noqa: S606
