"""Runs one rank of a trainer.

    torchrun --nproc-per-node=N -m rl_agent.trainer.grpo.worker SETTINGS

SETTINGS is a JSON file of `TrainerSettings`. Trains along with a run, and writes checkpoints and
`metrics.jsonl`. Started again, it goes on from the newest checkpoint. SIGTERM makes it save and end with 143.
"""

import logging
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from pydantic import ValidationError
from transformers.utils import logging as transformers_logging

from rl_agent.errors import ConfigError, HarnessError
from rl_agent.trainer.grpo.model.model_files import load_policy, load_reference
from rl_agent.trainer.grpo.model.parallel import Ranks, join_ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.settings import TrainerSettings, out_of_memory_file
from rl_agent.trainer.grpo.step.meter import Meter, PoolWatch
from rl_agent.trainer.grpo.stream import Stream
from rl_agent.trainer.grpo.trainer import Trainer

EXIT_TERMINATED = 143


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    transformers_logging.disable_progress_bar()
    try:
        settings = read_settings(Path(argv[0]))
        shard_size, timeout_s = settings.parallel.shard_size, settings.parallel.peer_timeout_s
        with join_ranks(shard_size, timeout_s=timeout_s) as ranks:
            return train(settings, ranks)
    except torch.OutOfMemoryError:
        traceback.print_exc()
        out_of_memory_file(Path(argv[0])).touch()
        logging.getLogger(__name__).error(
            "the GPU's memory is full: the next start keeps less of a step in it, as far as trainer.parallel"
            " leaves it open"
        )
        return 1
    except HarnessError as error:
        logging.getLogger(__name__).error(str(error))
        return error.exit_code


def read_settings(path: Path) -> TrainerSettings:
    """Read the settings. Raises ConfigError that names the first key that is wrong."""
    try:
        return TrainerSettings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def train(settings: TrainerSettings, ranks: Ranks) -> int:
    """Load and train; returns the exit code."""
    seed_everything(settings.seed, ranks)
    policy = load_policy(settings, ranks)
    reference = None if settings.loss.kl_in == "none" else load_reference(settings, ranks, policy)
    with metered(settings, ranks) as meter:
        return run(settings, ranks, policy, Trainer(settings, ranks, policy, reference, meter=meter))


@contextmanager
def metered(settings: TrainerSettings, ranks: Ranks) -> Iterator[Meter | None]:
    """Count the money of a training that goes along with a run; rank 0 alone has the meter."""
    stream = settings.stream
    if ranks.rank != 0 or stream is None:
        yield None
        return
    if ranks.peak_flops_per_s(settings.peak_tflops) is None:
        logging.getLogger(__name__).info(
            "no MFU: the peak rate of %s is not known (trainer.peak_tflops)", ranks.device_name
        )
    meter = partial(Meter, settings.price_per_hour, stream.progress.with_suffix(".meter.json"))
    manager = stream.pool_manager
    if manager is None:
        yield meter()
        return
    with PoolWatch(manager, stream.run_id, settings.price_per_hour) as watch:
        yield meter(totals=watch.totals, report=watch.report)


def run(settings: TrainerSettings, ranks: Ranks, policy: PolicyModel, trainer: Trainer) -> int:
    """Train to the end, or until told to stop; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: trainer.stop())
    try:
        Stream(settings, ranks, policy, trainer).run()
    finally:
        trainer.close()
    return EXIT_TERMINATED if trainer.is_stopping else 0


def seed_everything(seed: int, ranks: Ranks) -> None:
    """Seed this rank: with equal seeds all ranks would draw equal numbers."""
    torch.manual_seed(seed + ranks.rank)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
