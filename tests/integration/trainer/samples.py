"""Random episodes and a tiny random Qwen3 for tests of the trainer."""

import numpy as np
import torch
from transformers import Qwen3Config

from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model

torch.set_num_threads(1)  # threads cost a tiny model more than they give

VOCABULARY = 131


def tiny_config(*, tied: bool = False) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
    )


def tiny_policy(
    *,
    seed: int = 0,
    temperature: float = 1.0,
    activation_checkpointing: float = 0.0,
    tied: bool = False,
    is_packed: bool = True,
) -> PolicyModel:
    torch.manual_seed(seed)
    model = build_model(
        tiny_config(tied=tied),
        activation_checkpointing=activation_checkpointing,
        implementation=attention.NAME if is_packed else None,
    )
    for parameter in model.parameters():  # far from the near-uniform policy of a fresh model
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return PolicyModel(model, temperature=temperature, chunk_tokens=32)


def random_segment(generator: np.random.Generator, *, turns: int = 2, longest: int = 24) -> Segment:
    """Context and response in turn, `turns` times."""
    runs = [int(n) for n in generator.integers(1, longest, 2 * turns)]
    is_response = np.repeat([index % 2 == 1 for index in range(2 * turns)], runs)
    behaviour = np.where(is_response, -generator.uniform(3.0, 6.0, len(is_response)), 0.0)
    token_ids = generator.integers(0, VOCABULARY, len(is_response))
    return Segment(token_ids.astype(np.int32), is_response, behaviour.astype(np.float32))


def after(begin: Segment, segment: Segment) -> Segment:
    """The segment with a beginning before it."""
    names = "token_ids", "is_response", "behaviour"
    return Segment(*(np.concatenate([getattr(begin, name), getattr(segment, name)]) for name in names))


def beginning(segment: Segment, tokens: int) -> Segment:
    return Segment(segment.token_ids[:tokens], segment.is_response[:tokens], segment.behaviour[:tokens])


def longest_run(segment: Segment) -> int:
    """Tokens of the longest response."""
    runs = "".join("x" if is_response else " " for is_response in segment.is_response).split()
    return max(map(len, runs), default=0)


def random_groups(
    count: int,
    *,
    size: int = 4,
    seed: int = 0,
    longest: int = 24,
    turns: int | None = None,
    prompt: int = 0,
) -> list[Group]:
    """Groups with rewards in [0, 1], of each the third attempt cut off.

    Episodes have `turns`, or one to three, one in two segments. With a `prompt` of so many tokens all
    segments of a group begin with it, and the last episode also with most of what the first one has.
    """
    generator = np.random.default_rng(seed)
    groups = []
    for index in range(count):
        samples: list[TrainingSample] = []
        tokens = generator.integers(0, VOCABULARY, prompt).astype(np.int32)
        begin = Segment(tokens, np.zeros(prompt, bool), np.zeros(prompt, np.float32))
        for attempt in range(size):
            segments = tuple(
                random_segment(generator, turns=turns or int(generator.integers(1, 4)), longest=longest)
                for _ in range(2 if attempt == 1 and turns is None else 1)
            )
            if prompt:
                whole = samples[0].segments[0] if attempt == size - 1 and samples else begin
                segments = tuple(after(beginning(whole, max(prompt, len(whole) - 5)), s) for s in segments)
            key, reward = f"task-{index}:0:{attempt}", float(generator.random())
            long = {"longest_response": max(map(longest_run, segments)), "is_cut": attempt == 2}
            samples.append(TrainingSample(key, segments, reward, Versions(0, 0), **long))
        groups.append(Group(f"1/task-{index}:0", tuple(samples)))
    return groups
