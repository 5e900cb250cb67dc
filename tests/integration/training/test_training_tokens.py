"""The real LLaMA-Factory reads, without training, the recorded tokens, with loss on responses alone.

Its own code reads the YAML, takes the template, loads the dataset and makes the batch. A template that would
render conversations otherwise than the engine saw them cannot: it is not asked to.
"""

import dataclasses
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.config.plan import Plan
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.prepare import prepare
from rl_agent.types import Observation, Step
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard

THINKING = """\
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content and not loop.last -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- if opens_thought is defined -%}{{- '<think>\\n' -}}{%- endif -%}
{%- endif -%}"""
"""A template like Qwen3's: thoughts of earlier turns are stripped, a prompt may hold an empty thought or
open one.
"""

REPLIES = {
    "no thought": ({"enable_thinking": False}, ("12<|im_end|>", "Yes, 12.<|im_end|>")),
    "thoughts": ({}, ("<think>\n5+7\n</think>\n\n12<|im_end|>", "<think>\n</think>\n\n12<|im_end|>")),
    "thoughts begun in the prompt": (
        {"opens_thought": True},
        ("5+7</think>\n\n12<|im_end|>", "sure</think>12"),
    ),
    "plain": ({}, (" 12\n<|im_end|>", "<image> 12 <|im_end|>")),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("thinking") / "base")
    (folder / "chat_template.jinja").write_text(THINKING)
    return folder


def conversation(base: Path, variables: dict, replies: tuple[str, ...]) -> tuple[Step, ...]:
    """Make the steps as the collector records them."""
    chat, tokenizer = (
        ChatTokenizer.load(str(base), variables),
        Tokenizer.from_file(str(base / "tokenizer.json")),
    )
    steps: list[Step] = []
    prompt = chat.start("Be brief.", Observation("What is 5 + 7?"))
    for reply in replies:
        reason = "stop" if reply.endswith("<|im_end|>") else "length"
        step = make_step(reply, prompt=tuple(prompt), tokenizer=tokenizer, finish_reason=reason)
        steps.append(step)
        prompt = chat.extend(step.generation.token_ids, Observation("And is that right?\n"))
    return tuple(steps)


def reset(steps: tuple[Step, ...], base: Path) -> tuple[Step, ...]:
    """The same where the whole conversation was sent anew: the template strips the thought of the first."""
    chat = ChatTokenizer.load(str(base), {})
    first, second = steps
    messages = [("user", "What is 5 + 7?"), ("assistant", "12"), ("user", "And is that right?\n")]
    text = "".join(f"<|im_start|>{role}\n{text_of_turn}<|im_end|>\n" for role, text_of_turn in messages)
    prompt = tuple(chat._encode(text + "<|im_start|>assistant\n"))
    return first, dataclasses.replace(second, prompt_token_ids=prompt, context_reset=True)


def recorded(steps: tuple[Step, ...]) -> list[tuple[list[int], list[int]]]:
    """Return for each step the tokens of its context, and those of its response."""
    samples, context = [], []
    for step in steps:
        context = ([] if step.context_reset else context) + list(step.prompt_token_ids)
        samples.append((context, list(step.generation.token_ids)))
        context = context + list(step.generation.token_ids)
    return samples


def write_steps(plan: Plan, *episodes: tuple[Step, ...]) -> None:
    trajectories = [make_trajectory(index, steps=steps) for index, steps in enumerate(episodes)]
    write_shard(plan.paths.shard("train", 1), make_header(1), *trajectories)


def trained_on(plan: Plan, *, is_collated: bool) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of each sample, without padding, by LLaMA-Factory's own code."""
    from llamafactory.data import SFTDataCollatorWith4DAttentionMask, get_dataset
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from transformers import AutoTokenizer

    arguments = yaml.safe_load(plan.paths.update_dir(1).joinpath("train.yaml").read_bytes())
    model_args, data_args, training_args, _, _ = get_train_args(arguments)
    tokenizer = AutoTokenizer.from_pretrained(arguments["model_name_or_path"])
    template = get_template_and_fix_tokenizer(tokenizer, data_args)
    rows = get_dataset(template, model_args, data_args, training_args, "sft", tokenizer)["train_dataset"]
    samples = [(row["input_ids"], row["labels"]) for row in rows]
    if is_collated:
        collate = SFTDataCollatorWith4DAttentionMask(
            template=template, tokenizer=tokenizer, pad_to_multiple_of=8
        )
        batch = collate([dict(row) for row in rows])
        for i, (tokens, labels) in enumerate(samples):
            assert batch["attention_mask"][i].sum() == len(tokens)
            assert batch["input_ids"][i, : len(tokens)].tolist() == tokens
            assert batch["labels"][i, : len(labels)].tolist() == labels
            assert (batch["labels"][i, len(labels) :] == -100).all()
    return samples


def test_loss_is_on_every_token_of_a_response_and_on_none_of_a_prompt(tmp_path, base):
    plan = make_plan(tmp_path / "log ü", base)
    episodes = [conversation(base, variables, replies) for variables, replies in REPLIES.values()]
    episodes.append(reset(episodes[1], base))
    write_steps(plan, *episodes)
    prepare(plan, 1)

    samples = trained_on(plan, is_collated=True)

    wanted = [pair for steps in episodes for pair in recorded(steps)]
    assert len(wanted) == 2 * len(episodes)
    assert samples == [(prompt + response, [-100] * len(prompt) + response) for prompt, response in wanted]
    assert read_summary(plan.paths.update_dir(1)).left_out == {}


@pytest.mark.extended
def test_no_template_of_llamafactorys_changes_a_token(tmp_path, base):
    from llamafactory.data.template import TEMPLATES

    plan = make_plan(tmp_path / "log", base)
    steps = conversation(base, *REPLIES["no thought"])
    write_steps(plan, steps)
    path = prepare(plan, 1)
    arguments = yaml.safe_load(path.read_bytes())
    wanted = [(prompt + response, [-100] * len(prompt) + response) for prompt, response in recorded(steps)]
    assert len(TEMPLATES) > 100
    for name in TEMPLATES:
        path.write_text(yaml.safe_dump(arguments | {"template": name}))
        assert trained_on(plan, is_collated=False) == wanted, name
