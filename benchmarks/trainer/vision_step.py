"""Tokens per second of a vision model's gradient, beside text of the same lengths.

    PYTHONPATH=$PWD/.venv/vision python benchmarks/trainer/vision_step.py     tiny, on a CPU, a minute
    python benchmarks/trainer/vision_step.py --shape 2b                       one GPU
    python benchmarks/trainer/vision_step.py --shape 2b --compile-layers

Qwen3-VL's shape, random weights and tokens, a frozen tower in bf16 on a GPU: this measures speed, never
learning. An episode has 4 to 8 turns, each with a new screenshot of 1000 x 800 pixels, of which nobody has
read any before; the context shows the five newest, so that a later turn begins a sequence of its own. Both
rows take the same sequences through `UpdateStep`, the second with text in place of images. FLOPs are those
of the layers: what the tower does costs time and counts nothing. What a step is (--token-budget,
--activation-checkpointing, ...) is said as to throughput.py.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from throughput import (
    LOSS,
    add_step_options,
    batch_settings,
    matmul_flops_per_s,
    met_ranks,
    peak_gib,
    policy_of,
    segments_of,
    timed,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.image_requests import SHAPES, Screenshots, make_processor
from benchmarks.trainer.vision import IMAGE_TOKENS, WINDOW
from rl_agent.monitor.flops import ModelShape, training_flops
from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.model_check import compile_ahead
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model, read_config
from rl_agent.trainer.grpo.model.vision import ImageReader
from rl_agent.trainer.grpo.step.update_step import UpdateStep

SIBLINGS = 4
RESPONSE_TOKENS = 100
TURN_TOKENS = 30
"""Tokens of a turn's words; an older turn, whose image is no longer shown, has as many."""


class Episodes:
    """Draws episodes; no two show the same screenshot."""

    def __init__(self, folder: Path, image_token: int, image_tokens: int, words: int) -> None:
        self._screenshots = Screenshots(folder)
        self._generator = np.random.default_rng(0)
        self._image = [image_token] * image_tokens
        self._words = words
        self._taken = 0

    def groups(self, count: int) -> list[Group]:
        """Return as many episodes, in groups of siblings."""
        starts = range(0, count, SIBLINGS)
        return [Group(str(start), tuple(self._episode() for _ in range(SIBLINGS))) for start in starts]

    def _episode(self) -> TrainingSample:
        turns = [self._turn() for _ in range(self._generator.integers(4, 9))]
        segments = [self._segment(turns[:WINDOW], 0)]
        segments += [
            self._segment(turns[n - WINDOW : n], n - WINDOW) for n in range(WINDOW + 1, len(turns) + 1)
        ]
        return TrainingSample(
            str(self._taken), tuple(segments), float(self._generator.random()), Versions(0, 0)
        )

    def _turn(self) -> tuple[str, int]:
        """Return a new screenshot, and the tokens of the response to it."""
        self._taken += 1
        length = min(self._generator.geometric(1 / RESPONSE_TOKENS), 4 * RESPONSE_TOKENS)
        return str(self._screenshots.take(str(self._taken)).path), int(length)

    def _segment(self, turns: list[tuple[str, int]], older: int) -> Segment:
        """Return the sequence of the turns in the window; only the last is new where older ones are not."""
        tokens, is_response = self._text(TURN_TOKENS * (2 + older)), [False] * TURN_TOKENS * (2 + older)
        for index, (_, length) in enumerate(turns):
            tokens += [*self._image, *self._text(TURN_TOKENS + length)]
            is_response += [False] * (len(self._image) + TURN_TOKENS)
            is_response += [older == 0 or index == len(turns) - 1] * length
        behaviour = np.full(len(tokens), -np.log(self._words), np.float32)
        shown = tuple(path for path, _ in turns)
        return Segment(np.array(tokens, np.int32), np.array(is_response), behaviour, shown)

    def _text(self, count: int) -> list[int]:
        tokens: list[int] = self._generator.integers(0, self._words, count).tolist()
        return tokens


def without_images(group: Group, image_token: int) -> Group:
    """Return the group with a word in place of each of an image's tokens."""

    def text(segment: Segment) -> Segment:
        tokens = np.where(segment.token_ids == image_token, np.arange(len(segment)) % 50, segment.token_ids)
        return replace(segment, token_ids=tokens.astype(np.int32), images=())

    samples = [replace(sample, segments=tuple(map(text, sample.segments))) for sample in group.samples]
    return replace(group, samples=tuple(samples))


def make_policy(options: argparse.Namespace, folder: Path, ranks: Ranks) -> PolicyModel:
    """Build the policy as the trainer does of files in bf16."""
    is_cuda = ranks.device.type == "cuda"
    torch.manual_seed(0)
    with ranks.device:
        model = build_model(read_config(folder), activation_checkpointing=options.activation_checkpointing)
    reader = ImageReader.load(folder, model)
    if is_cuda:
        model.model.visual.to(torch.bfloat16)
        attention.use_in_tower(model)
    precision = "bf16" if is_cuda else "fp32"
    policy, _ = policy_of(options, model, ranks, use_liger=options.liger, precision=precision)
    policy.reader, policy.shares_prefixes = reader, True
    if options.compile_layers:
        compile_ahead(policy, is_chosen=True)
    return policy


def measure(options: argparse.Namespace, folder: Path, ranks: Ranks) -> None:
    """Print two rows for each round."""
    policy = make_policy(options, folder, ranks)
    shape, image_token = ModelShape.of(policy.config), policy.image_token
    assert shape is not None and image_token is not None
    image_tokens = 2 if options.shape == "tiny" else IMAGE_TOKENS
    episodes = Episodes(folder, image_token, image_tokens, min(1000, image_token))

    def gradient(groups: list[Group]) -> None:
        policy.zero_grad(set_to_none=True)
        step = UpdateStep(policy, None, ranks, LOSS, batch_settings(options))
        for group in groups:
            step.add([group])
        numbers = step.finish()
        assert numbers["total_tokens"] == sum(map(len, segments_of(groups))), "not all was trained on"

    for _ in range(2):
        gradient(episodes.groups(SIBLINGS))
    rate = matmul_flops_per_s(ranks.device)
    print(f"Qwen3-VL {options.shape}; bf16 matmul {rate / 1e12:.4g} TFLOP/s\n")
    print("| sequences | tokens | s | tokens/s | MFU | peak GiB |\n| --- | --- | --- | --- | --- | --- |")
    for _ in range(options.repeats):
        groups = episodes.groups(options.episodes)
        texts = [without_images(group, image_token) for group in groups]
        lengths = [(len(part), int(part.is_response.sum())) for part in segments_of(groups)]
        tokens, flops = sum(length for length, _ in lengths), training_flops(shape, lengths)
        for name, of in (("with images", groups), ("text alone", texts)):
            peak_gib(ranks.device)
            seconds = timed(lambda of=of: gradient(of), ranks.device)  # type: ignore[misc]
            speed = f"{seconds:.2f} | {tokens / seconds:,.0f} | {flops / seconds / rate:.1%}"
            print(f"| {name} | {tokens:,} | {speed} | {peak_gib(ranks.device):.1f} |", flush=True)


def main() -> None:
    parser = FlagParser(description=__doc__)
    add_step_options(parser, shapes=SHAPES)
    parser.add_argument("--episodes", type=int, default=12, help=f"in groups of {SIBLINGS}")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vision-step-") as temporary, met_ranks(options) as ranks:
        folder = Path(temporary, "model")
        make_processor(folder, options.shape, 32_768)
        measure(options, folder, ranks)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
