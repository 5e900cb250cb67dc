"""Updates with the real LLaMA-Factory on a tiny model: from trajectories to what is served, twice."""

import json
import math
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.monitor import metrics
from rl_agent.types import EpisodeKey, Observation
from rl_agent.update.export import Dialogue, Spoken, TokenTexts, Turn, example
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.training import assert_serves, collect, optimizer_steps, tensors_of, update

pytestmark = pytest.mark.timeout(300)


def test_two_full_updates_continue_the_optimizer_and_serve_what_they_made(tmp_path):
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
    collect(first_plan, 1, 60)
    first, first_log = update(first_plan, 1)
    # 60 examples, 6 of them held out: 7 batches of 8, 4 optimizer steps an epoch, 2 epochs.
    assert [line["current_steps"] for line in first_log] == list(range(1, 9))

    second_plan = make_plan(log_path, base, "trainer.learning_rate=0.0005", *settings)
    collect(second_plan, 2, 25)
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
    records = list(metrics.read(second_plan.paths.metrics))
    numbers = [record for record in records if "update/loss" in record]
    assert [n["update/total_steps"] for n in numbers] == [8, 18]
    assert all(math.isfinite(n["update/eval_loss"]) for n in numbers)
    steps = [record for record in records if "update_step/loss" in record]
    assert [step["update_step"] for step in steps] == list(range(1, 19))
    assert [step["update_step/loss"] for step in steps] == pytest.approx(losses)
    assert all(step["update_step/grad_norm"] > 0 for step in steps)


def assert_steps_match_the_learning_rate(old: Path, new: Path, *, steps: int, learning_rate: float) -> None:
    """Adam moves a value by about the learning rate a step; twice as far would be the old rate."""
    before, after = tensors_of(old), tensors_of(new)
    farthest = max(float(abs(after[name] - before[name]).max()) for name in before)
    assert 0.3 * steps * learning_rate < farthest < 1.6 * steps * learning_rate


@pytest.mark.extended
def test_lora_continues_its_adapter_and_serves_a_merged_model(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(
        tmp_path / "log",
        base,
        "trainer.finetuning_type=lora",
        "trainer.learning_rate=0.005",
        "trainer.warmup_steps=0",
        "trainer.num_train_epochs=4",
    )
    collect(plan, 1, 60)
    first, first_log = update(plan, 1)
    collect(plan, 2, 30)
    second, second_log = update(plan, 2)

    assert second_log[0]["current_steps"] == first_log[-1]["current_steps"] + 1
    assert second_log[0]["loss"] < first_log[0]["loss"] - 0.1
    assert optimizer_steps(second) == {second_log[-1]["current_steps"]}
    assert_serves(first, base)
    assert_serves(second, base)
    adapter = json.loads((second / "trainer" / "adapter_config.json").read_bytes())
    assert adapter["base_model_name_or_path"] == str(base)


@pytest.mark.extended
def test_a_decaying_schedule_runs_anew_in_each_update_with_the_old_moments(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(
        tmp_path / "log",
        base,
        "trainer.lr_scheduler_type=cosine",
        "trainer.learning_rate=0.001",
        "trainer.warmup_steps=0",
        "trainer.max_steps=4",
    )
    collect(plan, 1, 60)
    _, first_log = update(plan, 1)
    second, second_log = update(plan, 2)

    rates = [[line["lr"] for line in log] for log in (first_log, second_log)]
    assert rates[0] == pytest.approx([0.001, 0.00085355, 0.0005, 0.00014645], rel=1e-4)
    assert rates[1] == rates[0]
    assert optimizer_steps(second) == {8}
    assert second_log[-1]["loss"] < first_log[-1]["loss"]
    steps = [line["update_step"] for line in metrics.read(plan.paths.metrics) if "update_step" in line]
    assert steps == list(range(1, 9))


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
    row = example(Dialogue(EpisodeKey("t", 0, 0), turns, "Be brief."), 1, TokenTexts(("<|im_end|>",)))
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
