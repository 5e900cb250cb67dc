"""Updates with the real LLaMA-Factory on a tiny model: from trajectories to what is served, twice."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.config import Plan
from rl_agent.paths import PROJECT_ROOT
from rl_agent.types import EpisodeKey, Observation
from rl_agent.update.export import Dialogue, Spoken, Turn, example
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.unit.trajectories import make_header, make_step, make_trajectory, write_shard

pytestmark = pytest.mark.timeout(300)


async def collect(plan: Plan, iteration: int, count: int) -> None:
    """A finished shard of right answers, as the engine would write them."""
    episodes = []
    for index in range(count):
        step = make_step(f"{index % 30 + 7}<|im_end|>", observation=f"What is {index % 30} + 7?")
        episodes.append(make_trajectory(index, iteration=iteration, steps=(step,)))
    write_shard(plan.paths.shard("train", iteration), make_header(iteration), *episodes)


def run_verb(verb: str, plan: Plan, iteration: int) -> str:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    argv = [sys.executable, "-m", "rl_agent.cli", verb, "--plan", str(path), "--iteration", str(iteration)]
    done = subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def update(plan: Plan, iteration: int) -> tuple[Path, list[dict]]:
    """Run the three verbs; returns the served folder and the log lines of the steps."""
    run_verb("prepare-update", plan, iteration)
    run_verb("train", plan, iteration)
    path, version = run_verb("publish", plan, iteration).split("\t")
    assert version == str(iteration)
    log = (plan.paths.training_dir(iteration) / "trainer_log.jsonl").read_text().splitlines()
    return Path(path), [line for line in map(json.loads, log) if "loss" in line]


def optimizer_steps(folder: Path) -> set[int]:
    import torch

    state = torch.load(folder / "trainer" / "optimizer.pt", weights_only=True)
    return {int(entry["step"]) for entry in state["state"].values()}


def tensors_of(folder: Path) -> dict:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


async def test_two_full_updates_continue_the_optimizer_and_serve_what_they_made(tmp_path):
    base = make_tiny_model(tmp_path / "base model")
    log_path = tmp_path / "log path ü"
    settings = [
        "trainer.per_device_train_batch_size=8",
        "trainer.gradient_accumulation_steps=2",
        "trainer.warmup_steps=0",
        "trainer.do_eval=true",
        "trainer.val_split_ratio=0.1",
    ]
    first_plan = make_plan(log_path, base, "trainer.learning_rate=0.001", *settings)
    await collect(first_plan, 1, 60)
    first, first_log = update(first_plan, 1)
    # 60 examples, 6 of them held out: 7 batches of 8, 4 optimizer steps an epoch, 2 epochs.
    assert [line["current_steps"] for line in first_log] == list(range(1, 9))

    second_plan = make_plan(log_path, base, "trainer.learning_rate=0.0005", *settings)
    await collect(second_plan, 2, 25)
    second, second_log = update(second_plan, 2)
    # 85 examples, 8 held out: 10 batches, 5 steps an epoch, 2 epochs, after the 8 of before.
    assert [line["current_steps"] for line in second_log] == list(range(9, 19))
    assert optimizer_steps(first) == {8}
    assert optimizer_steps(second) == {18}

    losses = [line["loss"] for line in first_log + second_log]
    assert all(map(math.isfinite, losses))
    assert second_log[0]["loss"] < first_log[0]["loss"] - 0.5
    assert losses[-1] < second_log[0]["loss"]
    assert {line["lr"] for line in first_log} == {0.001}
    assert {line["lr"] for line in second_log} == {0.0005}

    assert_serves(second, base)
    assert_steps_match_the_learning_rate(first, second, steps=10, learning_rate=0.0005)
    numbers = [json.loads(line) for line in second_plan.paths.metrics.read_text().splitlines()]
    assert [n["update/total_steps"] for n in numbers] == [8, 18]
    assert all(math.isfinite(n["update/eval_loss"]) for n in numbers)


def assert_steps_match_the_learning_rate(old: Path, new: Path, *, steps: int, learning_rate: float) -> None:
    """Adam moves a value by about the learning rate a step; twice as far would be the old rate."""
    before, after = tensors_of(old), tensors_of(new)
    farthest = max(float(abs(after[name] - before[name]).max()) for name in before)
    assert 0.3 * steps * learning_rate < farthest < 1.6 * steps * learning_rate


def assert_serves(folder: Path, base: Path) -> None:
    """transformers loads it; its tokenizer and chat template are the base model's."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    messages = [{"role": "user", "content": "What is 3 + 7?"}]
    old, new = AutoTokenizer.from_pretrained(base), AutoTokenizer.from_pretrained(folder)
    assert old.apply_chat_template(messages) == new.apply_chat_template(messages)
    assert old.get_vocab() == new.get_vocab()
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**new("What is", return_tensors="pt", return_token_type_ids=False)).logits
    assert bool(torch.isfinite(logits).all())
    assert not list(folder.glob("*.pt")) and not list(folder.glob("*.bin"))
    start, end = tensors_of(base), tensors_of(folder)
    assert start.keys() == end.keys()
    assert any((start[name] != end[name]).any() for name in start)


async def test_lora_continues_its_adapter_and_serves_a_merged_model(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(
        tmp_path / "log",
        base,
        "trainer.finetuning_type=lora",
        "trainer.learning_rate=0.005",
        "trainer.warmup_steps=0",
        "trainer.num_train_epochs=4",
    )
    await collect(plan, 1, 60)
    first, first_log = update(plan, 1)
    await collect(plan, 2, 30)
    second, second_log = update(plan, 2)

    assert second_log[0]["current_steps"] == first_log[-1]["current_steps"] + 1
    assert second_log[0]["loss"] < first_log[0]["loss"] - 0.1
    assert optimizer_steps(second) == {second_log[-1]["current_steps"]}
    assert_serves(first, base)
    assert_serves(second, base)
    adapter = json.loads((second / "trainer" / "adapter_config.json").read_bytes())
    assert adapter["base_model_name_or_path"] == str(base)


def test_what_is_trained_on_is_what_the_engine_saw(tmp_path):
    """Two turns with a system prompt: the exported text becomes the tokens of the rollout again."""
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments
    from transformers import AutoTokenizer

    base = make_tiny_model(tmp_path / "base")
    chat = ChatTokenizer.load(str(base), {})
    fast = Tokenizer.from_file(str(base / "tokenizer.json"))
    replies = ["I think <think>12</think> 12<|im_end|>", "So 19.\n<|im_end|>"]
    shown = [Observation("What is 5 + 7?\n"), Observation(" And 7 more, Ü? ")]
    spoken = [fast.encode(reply, add_special_tokens=False).ids for reply in replies]
    seen = chat.start("Be brief.", shown[0]) + spoken[0]
    seen += chat.extend(spoken[0], shown[1]) + spoken[1]

    turns = tuple(Turn(show, Spoken(reply)) for show, reply in zip(shown, replies, strict=True))
    row = example(Dialogue(EpisodeKey("t", 0, 0), turns, "Be brief."), 1, ["<|im_end|>"])
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
    for name in ("qwen3_nothink", "qwen3"):
        tokenizer = AutoTokenizer.from_pretrained(base)
        template = get_template_and_fix_tokenizer(
            tokenizer, DataArguments(template=name, preserve_thinking=True)
        )
        pairs = template.encode_multiturn(tokenizer, messages, row["system"])
        trained_on = [token for pair in pairs for part in pair for token in part]
        end_of_line = tokenizer.encode("\n", add_special_tokens=False)
        if name == "qwen3_nothink":
            assert trained_on == seen + end_of_line
        else:  # the second reply has no thought: the reasoning template puts an empty one there
            assert trained_on[: len(seen) - len(spoken[1])] == seen[: -len(spoken[1])]
