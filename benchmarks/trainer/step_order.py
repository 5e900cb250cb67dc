"""Which samples share an optimizer step: what it changes in learning, everything else being equal.

    python benchmarks/trainer/step_order.py [--seeds 0 1 2] [--iterations 2] [--steps 16] [--folder DIR]

The quickstart's task and base model, no engine: each iteration 2,048 samples (256 tasks, 8 attempts) are
drawn from the current weights by transformers and trained on by the trainer's own step, loss and optimizer,
with the settings of trl_comparison.py. Compared are, with the same base model, tasks and random numbers,

    arrival     whole groups, in the order in which their longest response ends
    groups      whole groups, shuffled
    shuffled    samples, shuffled (`trainer.batch.order=shuffled`, and what TRL does)

The table has the share of 400 held-out tasks that greedy decoding answers right, before and after each
iteration. A folder `seed-N` with tasks and model that another benchmark has made is taken as it is.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.learning import prepare
from benchmarks.trainer.trl_training import (
    GROUP_SIZE,
    GROUPS,
    LEARNING_RATE,
    LONGEST,
    SAMPLES,
    Verifier,
    accuracy,
    read_tasks,
)
from rl_agent.flag_parser import FlagParser
from rl_agent.paths import PROJECT_ROOT
from rl_agent.sections.grpo import BatchSettings, LossSettings, OptimizerSettings, ParallelSettings
from rl_agent.trainer.data.order import Deal
from rl_agent.trainer.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.model.parallel import Ranks, grid, shard, whole
from rl_agent.trainer.model.policy import PolicyModel, build_model, read_config
from rl_agent.trainer.step.optimizer import AdamW, clip_gradients
from rl_agent.trainer.step.update_step import UpdateStep

LOSS = LossSettings(
    advantage="grpo", drop_uninformative=False, normalization="token_mean", constant_length=LONGEST,
    clip_low=0.2, clip_high=0.2, dual_clip=None, proximal="behaviour", correction="none", correction_low=0.5,
    correction_high=2.0, kl_in="none", kl_estimator="k3", kl_coefficient=0.0, entropy_coefficient=0.0,
    temperature=1.0, overlong="keep", overlong_cache=None, overlong_penalty=0.0, longest_response=LONGEST,
)  # fmt: skip
BATCH = BatchSettings(
    token_budget=16384, logits_chunk_tokens=2048, attention_crossover=16384, max_staleness=0,
    allow_mixed_versions=True, finish_timeout_s=600, order="arrival",
)  # fmt: skip
PARALLEL = ParallelSettings(
    shard_size=None, reshard_after_forward=False, precision="fp32", activation_checkpointing=0.0,
    offload_optimizer=False, compile_layers=False, use_liger_kernel=None, peer_timeout_s=60,
)  # fmt: skip
OPTIMIZER = OptimizerSettings(
    learning_rate=LEARNING_RATE, schedule="constant", warmup_steps=10, decay_steps=None, beta1=0.9,
    beta2=0.99, epsilon=1e-8, weight_decay=0.0, max_grad_norm=1.0,
)  # fmt: skip


def by_arrival(groups: list[Group], steps: int, seed: str) -> list[list[Group]]:
    def ends(group: Group) -> tuple[int, str]:
        return max(sample.response_tokens for sample in group.samples), group.key

    return cut(sorted(groups, key=ends), steps)


def by_groups(groups: list[Group], steps: int, seed: str) -> list[list[Group]]:
    return cut(random.Random(seed).sample(groups, len(groups)), steps)


def by_samples(groups: list[Group], steps: int, seed: str) -> list[list[Group]]:
    deal = Deal({g.key: [s.key for s in g.samples] for g in groups}, steps=steps, seed=seed)
    parts = [deal.part(step) for step in range(steps)]
    return [[Group(g.key, g.samples, part[g.key]) for g in groups if g.key in part] for part in parts]


def cut(groups: list[Group], steps: int) -> list[list[Group]]:
    size = -(-len(groups) // steps)
    return [groups[start : start + size] for start in range(0, len(groups), size)]


ORDERS: dict[str, Callable[[list[Group], int, str], list[list[Group]]]] = {
    "arrival": by_arrival,
    "groups": by_groups,
    "shuffled": by_samples,
}


class Classroom:
    """One seed's tasks and base model."""

    def __init__(self, folder: Path, seed: int, top_k: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._folder, self._seed, self._top_k = folder, seed, top_k
        self._engine = AutoModelForCausalLM.from_pretrained(folder / "model")
        self._tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
        tasks = {split: read_tasks(folder / "tasks" / f"{split}.jsonl") for split in ("train", "test")}
        self._verifier = Verifier([*tasks["train"], *tasks["test"]], self._render)
        self._train, self._test = ([self._render(task) for task in of] for of in tasks.values())

    def _render(self, task: dict[str, Any]) -> str:
        message = [{"role": "user", "content": task["prompt"]}]
        text: str = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return text

    def train(self, ranks: Ranks, order: str, iterations: int, steps: int) -> list[float]:
        """Accuracy before and after each iteration."""
        from transformers import AutoModelForCausalLM

        torch.manual_seed(self._seed)
        model = build_model(read_config(self._folder / "model"), activation_checkpointing=0.0)
        model.load_state_dict(AutoModelForCausalLM.from_pretrained(self._folder / "model").state_dict())
        policy = PolicyModel(model, temperature=1.0, chunk_tokens=2048)
        shard(policy, ranks, PARALLEL)
        adamw = AdamW(policy, OPTIMIZER, offload=False)
        found = [self._serve(policy)]
        for iteration in range(1, iterations + 1):
            groups = self._sample(iteration)
            for part in ORDERS[order](groups, steps, f"{self._seed}/{iteration}"):
                step = UpdateStep(policy, None, ranks, LOSS, BATCH)
                step.add(part)
                clip_gradients(policy, step.finish()["grad_norm"], OPTIMIZER.max_grad_norm)
                adamw.update()
                policy.zero_grad(set_to_none=True)
            found.append(self._serve(policy))
        return found

    def _serve(self, policy: PolicyModel) -> float:
        weights = {name: whole(p.detach()) for name, p in policy.model.named_parameters()}
        self._engine.load_state_dict(weights, strict=False)
        return accuracy(self._engine, self._tokenizer, self._verifier, self._test)

    @torch.inference_mode()
    def _sample(self, iteration: int) -> list[Group]:
        prompts = random.Random(f"{self._seed}:{iteration}").sample(self._train, GROUPS)
        prompts = [prompt for prompt in prompts for _ in range(GROUP_SIZE)]
        encoded = self._tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        start, end = encoded["input_ids"].shape[1], self._tokenizer.eos_token_id
        out = self._engine.generate(
            **encoded, do_sample=True, temperature=1.0, top_k=self._top_k, top_p=1.0, max_new_tokens=LONGEST,
            eos_token_id=end, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        logits = torch.stack(out.logits, 1).log_softmax(-1)
        made = out.sequences[:, start:]
        logprobs = logits.gather(2, made[..., None]).squeeze(2)
        rewards = self._verifier(prompts, self._tokenizer.batch_decode(made, skip_special_tokens=True))
        samples = []
        for row in range(SAMPLES):
            prompt = encoded["input_ids"][row][encoded["attention_mask"][row].bool()].numpy()
            ends = (made[row] == end).nonzero()
            count = int(ends[0]) + 1 if len(ends) else made.shape[1]
            segment = Segment(
                np.concatenate([prompt, made[row, :count].numpy()]).astype(np.int32),
                np.arange(len(prompt) + count) >= len(prompt),
                np.concatenate([np.zeros(len(prompt)), logprobs[row, :count].numpy()]).astype(np.float32),
            )
            samples.append(TrainingSample(f"{row:04d}", (segment,), rewards[row], Versions(0, 0)))
        starts = range(0, SAMPLES, GROUP_SIZE)
        return [Group(f"{at:04d}", tuple(samples[at : at + GROUP_SIZE])) for at in starts]


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=2, help="of 2,048 samples each (default: 2)")
    parser.add_argument("--steps", type=int, nargs="+", default=[16, 64], help="of an iteration")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--top-k", type=int, default=0, help="sample only from so many tokens (default: all)")
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / "outputs" / "step_order")
    options = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ranks = grid(torch.device("cpu"), None)
    print("seed  steps  order     accuracy (%) before and after each iteration")
    for seed in options.seeds:
        folder = options.folder.resolve() / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, seed, folder / "prepare.log")
        room = Classroom(folder, seed, options.top_k)
        for steps in options.steps:
            for order in options.orders:
                found = room.train(ranks, order, options.iterations, steps)
                cells = " ".join(f"{100 * share:5.1f}" for share in found)
                print(f"{seed:4d}  {steps:5d}  {order:8}  {cells}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
