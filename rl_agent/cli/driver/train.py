"""Becomes LLaMA-Factory: the caller owns its process group, its log and its deadline."""

import argparse
import logging
import os
import sys

from rl_agent.cli._options import add_iteration, add_place, plan_parser, read_plan
from rl_agent.cluster.shared_fs.address import interface_name
from rl_agent.engine.sharing import training_devices
from rl_agent.served_model.verify import verify_model
from rl_agent.trainer.llamafactory.extensions import remove_abandoned_locks
from rl_agent.trainer.llamafactory.inputs import await_inputs, read_summary
from rl_agent.trainer.llamafactory.launch import (
    interface_variables,
    rendezvous_of,
    training_command,
    training_environment,
)
from rl_agent.trainer.llamafactory.render import setup_of

SUMMARY = "train on what prepare-update wrote (replaces this process by LLaMA-Factory)"

EXAMPLES = """examples
  rl-agent train --plan runs/r1/plan.json --iteration 3
  rl-agent train --plan runs/r1/plan.json --iteration 3 \\
      --nodes 2 --node-rank 1 --master 10.0.0.1:29500

With several nodes, give their number to prepare-update too, and call this verb on each node.
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("train", SUMMARY, EXAMPLES)
    add_iteration(parser)
    add_place(parser)
    return parser


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    place = rendezvous_of(options.nodes, options.node_rank, options.master)
    plan = read_plan(options.plan)
    config = plan.config
    folder = plan.paths.update_dir(options.iteration)
    await_inputs(
        folder,
        options.nodes,
        0.0 if place.node_rank == 0 else config.llamafactory.peer_timeout_s,
        on_wait=_report,
    )
    summary = read_summary(folder)
    if summary.is_trained:
        print("this training has already come to its end", file=sys.stderr)
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    verify_model(summary.started_from)
    setup = setup_of(plan, options.nodes)
    command = training_command(plan, options.iteration, setup, place)
    environ = os.environ | training_devices(config, plan.hardware.num_gpus, os.environ)
    environment = training_environment(setup, environ, folder / "cache" / f"node-{place.node_rank}")
    if setup.nodes > 1:
        environment |= interface_variables(interface_name(config.cluster), os.environ)
    remove_abandoned_locks(environment, _report)
    os.execvpe(command[0], command, environment)  # noqa: S606


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
