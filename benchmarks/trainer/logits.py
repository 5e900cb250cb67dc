"""What logits in fp32 cost a training step, beside logits that a half-precision product has rounded.

    python benchmarks/trainer/logits.py --shape tiny     CPU, under a minute
    python benchmarks/trainer/logits.py --shape 1.7b     one GPU
    python benchmarks/trainer/logits.py --shape 8b       one GPU of 141 GB

First, of tokens whose best logits are near 20: how many ratios between two policies that differ by a small
step are off by more than 5 %, beside float64 over the same operands. Then the gradient of one mini-batch is
computed with each by turns; model and episodes are those of `throughput.py`.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from throughput import (
    LOSS,
    SHAPES,
    add_step_options,
    batch_settings,
    build_policy,
    episodes,
    met_ranks,
    peak_gib,
    timed,
)
from torch import Tensor
from torch.nn.functional import linear
from transformers import Qwen3Config

from rl_agent.flag_parser import FlagParser
from rl_agent.trainer.model import logprobs
from rl_agent.trainer.model.parallel import Ranks
from rl_agent.trainer.step.update_step import UpdateStep

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def rounded(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W h + b as a linear layer gives it, in the precision of its operands."""
    return linear(hidden, weight, bias).to(torch.float32)


PRODUCTS: dict[str, Product] = {"fp32": logprobs._product, "rounded": rounded}


@contextmanager
def computed_by(product: Product) -> Iterator[None]:
    before = logprobs._product
    logprobs._product = product
    try:
        yield
    finally:
        logprobs._product = before


def steps(options: argparse.Namespace, config: Qwen3Config, ranks: Ranks) -> None:
    """Seconds of a gradient, with both by turns."""
    policy, is_fused = build_policy(options, config, ranks, use_liger=options.liger, precision="bf16")
    batch = batch_settings(options)
    tokens = options.token_budget * options.micro_batches
    groups = episodes(config, tokens, options.longest, options.prompt, seed=0)

    def gradient() -> None:
        policy.zero_grad(set_to_none=True)
        step = UpdateStep(policy, None, ranks, LOSS, batch)
        for group in groups:
            step.add([group])
        step.finish()

    seconds: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    peaks: dict[str, float] = {}
    for turn in range(options.rounds + 1):  # the first is not counted
        for name, product in PRODUCTS.items():
            peak_gib(ranks.device)
            with computed_by(product):
                took = timed(gradient, ranks.device)
            peaks[name] = peak_gib(ranks.device)
            if turn:
                seconds[name].append(took)
    print(f"{'liger, ' if is_fused else ''}{options.rounds} rounds of {tokens:,} tokens")
    print("| logits | s a step, median | fastest | slowest | against rounded | peak GiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    base = statistics.median(seconds["rounded"])
    for name, took in seconds.items():
        middle = statistics.median(took)
        cells = (
            f"{middle:.4f} | {min(took):.4f} | {max(took):.4f} | {middle / base - 1:+.2%} | {peaks[name]:.2f}"
        )
        print(f"| {name} | {cells} |")


def ratios(config: Qwen3Config, device: torch.device, tokens: int = 512) -> None:
    """Of tokens that compete, how many are off by more than 5 %."""
    torch.manual_seed(0)
    size, vocabulary = config.hidden_size, config.vocab_size
    weight = torch.randn(vocabulary, size, device=device).div_(size**0.5)
    rivals = weight[torch.randint(vocabulary, (2, tokens), device=device)].sum(0)
    hidden = 20 * rivals / rivals.square().sum(1, keepdim=True) * 2
    moved = hidden + 0.01 * hidden.std() * torch.randn_like(hidden)
    weight = weight.bfloat16()
    targets = (hidden.bfloat16() @ weight.T).argmax(1)

    def score(of: Tensor, matrix: Tensor) -> Tensor:
        options = {"temperature": 1.0, "chunk_tokens": 64}
        return logprobs.chosen_logprobs(of, matrix, targets, **options)[0].double()

    before, after = hidden.bfloat16(), moved.bfloat16()
    wide = weight.double()
    exact = (score(after.double(), wide) - score(before.double(), wide)).exp()
    print("| logits | ratios off by more than 5 % | largest error of a ratio |")
    print("| --- | --- | --- |")
    for name, product in PRODUCTS.items():
        with computed_by(product):
            error = ((score(after, weight) - score(before, weight)).exp() / exact - 1).abs()
        print(f"| {name} | {(error > 0.05).double().mean():.1%} | {error.max():.1e} |")


def main() -> None:
    parser = FlagParser(description=__doc__)
    add_step_options(parser)
    parser.add_argument("--rounds", type=int, default=5, help="with each, by turns")
    options = parser.parse_args()
    config = Qwen3Config(**SHAPES[options.shape], max_position_embeddings=40_960)
    with met_ranks(options) as ranks:
        ratios(config, ranks.device)
        steps(options, config, ranks)


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
