"""SmolLM2 trained by TRL: the other side of real_model.py, which starts it.

    python benchmarks/trainer/real_model_trl.py --trainer grpo|async --tasks DIR --model DIR --out FILE
        [--iterations N] [--groups N] [--steps N] [--seed N] [--device cpu|cuda] [--url URL]

`grpo` is GRPOTrainer, with vLLM in its own process on a GPU (`colocate`) and with transformers' generation on
a CPU. `async` is AsyncGRPOTrainer beside a vLLM server at --url. FILE gets a JSON line before the first
iteration and after some: samples, seconds without evaluations, greedy success on the held-out tasks, mean
reward of the samples since.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.trl_stream import Kernel
from benchmarks.trainer.trl_training import Record, read_tasks
from rl_agent.chat.parse import parse_action
from rl_agent.env.answer import final_answer, last_box
from rl_agent.env.plain_answers import expected_number, stated_number, whole_number
from rl_agent.system.flag_parser import FlagParser
from tests.integration.trainer.step.trl_import import import_trl

GROUP_SIZE, LONGEST = 8, 24
"""Attempts at a task, and tokens of a response."""
ENGINE_TOKENS = 256
"""Longest prompt and response together."""
TURN_END = 2
"""The token that ends a turn of SmolLM2."""


@cache
def is_right(response: str, answer: str) -> bool:
    """Return the verdict of the environment `math` on a whole response, where a plain number is expected.

    It uses none of the time limits that work in a main thread only, for AsyncGRPO scores in another one.
    """
    text = final_answer(parse_action(response))
    box = last_box(text)
    number = whole_number(text if box is None else box) or (stated_number(text) if box is None else None)
    expected = expected_number(answer)
    return number is not None and expected is not None and number.is_right_for(expected)


def reward(
    completions: Sequence[Any], completion_ids: Sequence[list[int]], answer: Sequence[str], **_: Any
) -> list[float]:
    """Score responses as the loop does: one that the token limit cut is no answer.

    AsyncGRPO sends it to a process of its own, where it can only be a function of a module.
    """
    return [
        float(TURN_END in ids and is_right(text_of(completion), expected))
        for completion, ids, expected in zip(completions, completion_ids, answer, strict=True)
    ]


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def success(model: Any, tokenizer: Any, tasks: Sequence[dict[str, Any]]) -> float:
    """Return the share of tasks that greedy decoding answers right."""
    import torch

    messages = [[{"role": "user", "content": task["prompt"]}] for task in tasks]
    prompts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in messages]
    encoded = tokenizer(
        prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    encoded = encoded.to(model.device)
    was_training, attention = model.training, model.config._attn_implementation
    model.set_attn_implementation("sdpa")  # that of AsyncGRPO takes packed rows alone
    model.eval()
    with torch.no_grad():
        ids = model.generate(**encoded, do_sample=False, max_new_tokens=LONGEST, use_cache=True)
    model.train(was_training)
    model.set_attn_implementation(attention)
    rows = ids[:, encoded["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    are_whole = (rows == TURN_END).any(dim=1).tolist()
    verdicts = [
        is_whole and is_right(text, task["answer"])
        for text, task, is_whole in zip(texts, tasks, are_whole, strict=True)
    ]
    return sum(verdicts) / len(verdicts)


def shared_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what both trainers are given: objective and optimizer of the other side, in TRL's words."""
    return {
        "output_dir": str(options.out.with_suffix("")),
        "max_steps": options.iterations * options.steps,
        "num_generations": GROUP_SIZE,
        "max_completion_length": LONGEST,
        "temperature": 1.0,
        "epsilon": 0.2,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "seed": options.seed,
        "use_cpu": options.device == "cpu",
        "bf16": options.device == "cuda",
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def most_rows(options: argparse.Namespace) -> int:
    """Return the rows of a micro-batch: on a GPU a step is one, as on our side."""
    return 64 if options.device == "cpu" else 256


def grpo_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return GRPOTrainer's settings: one generation an iteration, cut into its steps."""
    samples = options.groups * GROUP_SIZE
    rows = min(samples // options.steps, most_rows(options))
    uses_vllm = options.device == "cuda"
    return shared_settings(options) | {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": samples // options.steps // rows,
        "steps_per_generation": samples // rows,
        "loss_type": "bnpo",  # the mean over the tokens of a step
        "scale_rewards": "group",
        "beta": 0.0,
        "use_vllm": uses_vllm,
        **({"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if uses_vllm else {}),
        **({"vllm_max_model_length": ENGINE_TOKENS} if uses_vllm else {}),
    }


def async_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return AsyncGRPOTrainer's settings: the same samples a step, none older than one version."""
    samples = options.groups * GROUP_SIZE // options.steps
    rows = min(samples, most_rows(options))
    return shared_settings(options) | {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": samples // rows,
        "token_budget": -1,  # else a step has as many samples as fit
        "max_staleness": 1,
        "vllm_server_base_url": options.url,
    }


def make_trainer(options: argparse.Namespace, tokenizer: Any, dataset: Any, callback: Any) -> Any:
    """Make the trainer of TRL that --trainer names."""
    trl = import_trl("vllm", "requests", "aiohttp")
    common = {"reward_funcs": reward, "train_dataset": dataset, "processing_class": tokenizer}
    if options.trainer == "grpo":
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(options.model, dtype="float32")
        model.warnings_issued = {}
        settings = trl.GRPOConfig(**grpo_settings(options))
        return trl.GRPOTrainer(model, args=settings, callbacks=[callback], **common)
    from trl.experimental import async_grpo
    from trl.experimental.async_grpo import packing

    packing._flash_attn = lambda: Kernel  # its own would come from a model hub
    teach_responses(tokenizer)
    settings = async_grpo.AsyncGRPOConfig(**async_settings(options))
    trainer = async_grpo.AsyncGRPOTrainer(model=str(options.model), args=settings, **common)
    trainer.add_callback(callback)
    return trainer


def teach_responses(tokenizer: Any) -> None:
    """Let AsyncGRPO, which takes known chat templates only, parse SmolLM2's turns: they end as Qwen3's do."""
    from trl.chat_template_utils import add_response_schema, qwen3_chat_template

    own, tokenizer.chat_template = tokenizer.chat_template, qwen3_chat_template
    add_response_schema(tokenizer)
    tokenizer.chat_template = own


def train(options: argparse.Namespace) -> None:
    import_trl("vllm", "requests", "aiohttp")
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tasks = {split: read_tasks(options.tasks / f"{split}.jsonl") for split in ("train", "test")}
    record = Record(options.out)

    class Evaluation(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            record.write(0, lambda: success(model, tokenizer, tasks["test"]))

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any], model: Any, **_: Any
        ) -> None:
            """Note a step's reward, which TRL logs after its end, and evaluate after some iterations."""
            if "reward" in logs:  # GRPOTrainer has it once an iteration
                record.rewards.append(float(logs["reward"]))
            if "loss" in logs and state.global_step % (options.steps * options.eval_interval) == 0:
                samples = state.global_step // options.steps * options.groups * GROUP_SIZE
                record.write(samples, lambda: success(model, tokenizer, tasks["test"]))

    rows = [
        {"prompt": [{"role": "user", "content": task["prompt"]}], "answer": task["answer"]}
        for task in tasks["train"]
    ]
    trainer = make_trainer(options, tokenizer, Dataset.from_list(rows), Evaluation())
    weights = next(trainer.model.parameters())
    before = weights.detach().clone()
    trainer.train()
    assert not weights.detach().equal(before), "the optimizer changed nothing"
    sys.stdout.flush()
    os._exit(0)  # AsyncGRPO's child and vLLM's threads would be waited for


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--trainer", choices=("grpo", "async"), default="grpo")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--eval-interval", type=int, default=1, help="iterations between evaluations")
    parser.add_argument("--groups", type=int, default=64, help="tasks of an iteration, 8 attempts each")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of an iteration")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--url", help="the vLLM server of --trainer async")
    train(parser.parse_args())


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
