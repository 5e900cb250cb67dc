"""A trainer without a pool: one rank that trains on the episodes of a recorded iteration, a version a step.

    python -m tests.support.recorded_trainer SETTINGS LOG_PATH GROUP_SIZE STEPS

Loading, steps and checkpoints are those of the product; at the end the model is in its folder `model`.
"""

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from rl_agent.errors import HarnessError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.trainer.grpo.data.samples import Group, make_group
from rl_agent.trainer.grpo.model.model_files import load_policy, load_reference
from rl_agent.trainer.grpo.model.parallel import Ranks, join_ranks
from rl_agent.trainer.grpo.publish.served import export
from rl_agent.trainer.grpo.settings import TrainerSettings
from rl_agent.trainer.grpo.trainer import Trainer
from rl_agent.trainer.grpo.worker import EXIT_TERMINATED, read_settings, seed_everything
from rl_agent.types import Trajectory


class RecordedGroups:
    """A source of groups: each after its last episode, in the order in which these were recorded."""

    def __init__(self, log_path: Path, group_size: int) -> None:
        self._groups = _groups(log_path, group_size)

    def take(self, most: int) -> list[Group] | None:
        return [group for _, group in zip(range(most), self._groups, strict=False)] or None


def _groups(log_path: Path, group_size: int) -> Iterator[Group]:
    unfinished: dict[tuple[str, int], list[Trajectory]] = {}
    for trajectory in read_iteration(RunPaths(log_path), "train", 1, TRAJECTORY):
        name = (trajectory.key.task_id, trajectory.key.group)
        siblings = unfinished.setdefault(name, [])
        siblings.append(trajectory)
        if len(siblings) == group_size:
            yield make_group(unfinished.pop(name))


def train(settings: TrainerSettings, ranks: Ranks, source: RecordedGroups, steps: int) -> int:
    seed_everything(settings.seed, ranks)
    policy = load_policy(settings, ranks)
    reference = None if settings.loss.kl_in == "none" else load_reference(settings, ranks, policy)
    trainer = Trainer(settings, ranks, policy, reference)
    signal.signal(signal.SIGTERM, lambda *_: trainer.stop())
    try:
        trainer.resume()
        while trainer.steps < steps and trainer._step(source):
            trainer.version += 1
            trainer.save_at_times()
        trainer.save()
    finally:
        trainer.close()
    if trainer.is_stopping:
        return EXIT_TERMINATED
    export(policy, ranks, settings.model, settings.output / "model", torch.float32)
    return 0


def main(file: str, log_path: str, group_size: str, steps: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        settings = read_settings(Path(file))
        with join_ranks(settings.parallel.shard_size, timeout_s=settings.parallel.peer_timeout_s) as ranks:
            source = RecordedGroups(Path(log_path), int(group_size))
            return train(settings, ranks, source, int(steps))
    except HarnessError as error:
        logging.getLogger(__name__).error(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
