"""The same update under each of DeepSpeed's ZeRO stages: equal losses, and seconds for each.

    python benchmarks/trainer/zero_stages.py [--stages none,zero1,zero2,zero3] [--processes 2] [--updates 2]

A tiny random model, the verbs of an update (prepare, train, publish) as `run.sh` calls them, twice, so that
the second goes on with the optimizer of the first. On a GPU machine each process has a GPU; else they share
the CPU. The first start on a machine compiles an operator of DeepSpeed's, which takes a minute.
`none` is plain data parallelism, the baseline.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.config import Hardware, Plan
from rl_agent.engine.gpus import count_gpus
from rl_agent.flag_parser import FlagParser
from rl_agent.monitor import metrics
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.training.training import collect, run_verb

SETTINGS = (
    "trainer.per_device_train_batch_size=8",
    "trainer.learning_rate=0.001",
    "trainer.warmup_steps=0",
    "trainer.num_train_epochs=1",
)


def plan_for(stage: str, processes: int, folder: Path, base: Path) -> Plan:
    words = [
        f"trainer.deepspeed={'null' if stage == 'none' else stage}",
        f"trainer.nproc_per_node={processes}",
    ]
    gpus = count_gpus()
    if gpus:
        words += ["trainer.use_cpu=false", "trainer.bf16=false"]
    plan = make_plan(folder, base, *SETTINGS, *words)
    return plan.model_copy(update={"hardware": Hardware(num_gpus=gpus, cores=2, memory_gib=8)})


def measure(plan: Plan, updates: int) -> tuple[list[float], list[float]]:
    """Losses of all optimizer steps, and seconds of each training."""
    seconds = []
    for iteration in range(1, updates + 1):
        collect(plan, iteration, 64)
        run_verb("prepare-update", plan, iteration)
        began = time.perf_counter()
        run_verb("train", plan, iteration)
        seconds.append(time.perf_counter() - began)
        run_verb("publish", plan, iteration)
    records = metrics.read(plan.paths.metrics)
    return [record["update_step/loss"] for record in records if "update_step/loss" in record], seconds


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--stages", default="none,zero1,zero2,zero3")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        base = make_tiny_model(home / "base", hidden_size=chosen.hidden)
        print(f"{'stage':<8}{'seconds':>16}   losses ({chosen.processes} processes)")
        for stage in chosen.stages.split(","):
            try:
                losses, seconds = measure(
                    plan_for(stage, chosen.processes, home / stage, base), chosen.updates
                )
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"{stage:<8} failed: {str(error)[-1500:]}")
                continue
            took = " ".join(f"{value:.1f}" for value in seconds)
            print(f"{stage:<8}{took:>16}   {' '.join(f'{loss:.4f}' for loss in losses)}")


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
