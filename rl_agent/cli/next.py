"""Says what a run has to do next, from its flags and shards."""

from pathlib import Path

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.cluster.flags import finished_phases
from rl_agent.cluster.schedule import add_shards, next_work
from rl_agent.config import Plan
from rl_agent.errors import StoreError
from rl_agent.rollout.shard import read_header
from rl_agent.types import Split
from rl_agent.update import versions

SUMMARY = "print the next iteration and its unfinished phases, or an empty line when all is done"


def main(argv: list[str]) -> int:
    parser = plan_parser("next", SUMMARY)
    parser.add_argument(
        "--checkpoint",
        nargs=2,
        metavar=("SPLIT", "ITERATION"),
        help="print instead the checkpoint file that this iteration goes on with, or an empty line",
    )
    parser.add_argument(
        "--begun-here",
        action="store_true",
        help="with --checkpoint: this start has begun it, so go on with it also without --resume",
    )
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    if options.checkpoint:
        split, iteration = options.checkpoint
        is_ours = plan.command.resume or options.begun_here
        print(_checkpoint(plan, split, int(iteration)) if is_ours else "")
        return 0
    paths, ranks = plan.paths, plan.command.num_nodes
    finished = add_shards(finished_phases(paths.flags, plan.run_id, ranks, plan.attempt), paths)
    _add_published(finished, plan)
    work = next_work(plan.command, plan.first_iteration, finished)
    print(" ".join([str(work.iteration), *work.phases]) if work else "")
    return 0


def _add_published(finished: dict[int, set[str]], plan: Plan) -> None:
    """A published model ends its update, also where the run was killed before it wrote the flag."""
    served = versions.served_folder(plan.paths)
    record = versions.read_record(served) if served is not None else None
    if record is not None and record.run_id == plan.run_id:
        finished.setdefault(record.iteration, set()).add("update")


def _checkpoint(plan: Plan, split: Split, iteration: int) -> str:
    """The unfinished shard, if this run began it; another run's is set aside by a fresh start."""
    path = plan.paths.checkpoint_shard(split, iteration)
    return str(path) if path.exists() and _began(plan, path) else ""


def _began(plan: Plan, shard: Path) -> bool:
    try:
        return read_header(shard).run_id == plan.run_id
    except StoreError:
        return True  # the rollout opens it and says what is wrong with it
