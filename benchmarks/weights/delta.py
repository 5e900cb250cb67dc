"""Bytes and speed of the lossless delta between real consecutive training steps.

    python benchmarks/weights/delta.py                                  a small Qwen3 on the CPU, two minutes
    python benchmarks/weights/delta.py --device cuda --shape 1.7b       Qwen3-1.7B's shape, random weights
    python benchmarks/weights/delta.py --device cuda --shape 8b         123 GiB of GPU memory

Trained: bf16 weights for forward and backward, which are what is served; AdamW (torch's, betas 0.9, 0.999,
weight decay 0.01) on an fp32 master with fp32 state; real gradients of a real cross-entropy on tokens drawn
by Zipf's law. Each row is one step: the version after it against the one before, both in the host's memory as
for a publisher; with a GPU, blocks are sent there to find their changes. `entropy`: what an ideal
coder of independent differences would need. Every delta is decoded and compared bit by bit. Baselines of the
same run: copying the weights, and zstd (level 1, the same threads) of the raw bytes. Needs numpy, pyarrow,
torch, transformers.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import pyarrow
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.weights.format.delta import decode_delta, encode_delta
from rl_agent.weights.format.manifest import TensorEntry

SHAPES = {
    "small": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    },
    "1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
}
BATCH = {"small": (8, 128), "1.7b": (8, 512), "8b": (2, 512)}
"""Sequences and tokens of one step."""

BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 16 * 2**20}
"""A GPU is sent none that are smaller, see `encode_delta`."""
SAMPLE_BYTES = 256 * 2**20
"""zstd of the raw bytes is slow; this much of them is enough to know it."""


class Trained:
    """A model whose bf16 weights lie in one flat buffer, as a snapshot's do."""

    def __init__(self, shape: str, learning_rate: float, device: str) -> None:
        torch.manual_seed(0)
        config = Qwen3Config(**SHAPES[shape], max_position_embeddings=4096)
        with torch.device(device):
            self.model = Qwen3ForCausalLM(config)
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.device, self.batch, self.vocabulary = device, BATCH[shape], config.vocab_size
        masters = list(self.model.parameters())  # a tied one comes once
        self.flat = torch.empty(sum(p.numel() for p in masters), dtype=torch.bfloat16, device=device)
        served, start = {}, 0
        for master in masters:
            view = self.flat[start : start + master.numel()].view(master.shape)
            view.copy_(master.detach())
            served[id(master)] = torch.nn.Parameter(view)
            start += master.numel()
            self._step_with(master, served[id(master)], learning_rate)
        for module in self.model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, served[id(parameter)])
        self.model.train()

    def _step_with(
        self, master: torch.nn.Parameter, served: torch.nn.Parameter, learning_rate: float
    ) -> None:
        """Step as soon as the gradient is there, and drop it: gradients never take memory all at once."""
        optimizer = torch.optim.AdamW(
            [master], lr=learning_rate, betas=(0.9, 0.999), weight_decay=0.01, fused=self.device == "cuda"
        )

        def step(parameter: torch.Tensor) -> None:
            master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = parameter.grad = None
            parameter.data.copy_(master.detach())

        served.register_post_accumulate_grad_hook(step)

    def step(self) -> float:
        shape = self.batch
        ranks = torch.rand(shape, device=self.device).mul_(np.log(self.vocabulary)).exp_().long() - 1
        tokens = ranks.clamp_(0, self.vocabulary - 1)
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return float(loss.detach())


@dataclass(frozen=True, slots=True)
class Row:
    learning_rate: float
    step: int
    changed: float
    by_one: float
    entropy: float
    delta: float
    encode_gbs: float
    decode_gbs: float


def seconds(work: Callable[[], Any], device: str, repeats: int = 1) -> tuple[float, Any]:
    best, result = float("inf"), None
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best, result


def measure(
    base: torch.Tensor, new: torch.Tensor, learning_rate: float, step: int, threads: int, repeats: int
) -> Row:
    device = new.device.type
    old, now = base.view(torch.uint8), new.view(torch.uint8)
    layout = [TensorEntry("weights", "BF16", (base.numel(),), 0, now.numel())]
    settings: Any = {
        "block_bytes": BLOCK_BYTES[device],
        "threads": threads,
        "limit_bytes": 2 * now.numel(),
    }
    old_host, now_host = old.cpu().numpy(), now.cpu().numpy()
    encode: Callable[..., bytes | None] = encode_delta
    if device == "cuda":
        encode = partial(encode_delta, device=new.device)
    views = memoryview(old_host), memoryview(now_host)
    encode_s, blob = seconds(lambda: encode(*views, layout, **settings), device, repeats)
    target = np.ones_like(now_host)  # touched, so that its pages are there

    def write(start: int, content: memoryview) -> None:
        target[start : start + len(content)] = content

    decode_s, _ = seconds(
        lambda: decode_delta(memoryview(blob), memoryview(old_host), write, layout, threads=threads),
        device,
        repeats,
    )
    if not np.array_equal(target, now_host):
        raise SystemExit("the decoded weights differ from the trained ones")
    changed, by_one, entropy = statistics(base, new)
    size = now.numel()
    return Row(
        learning_rate,
        step,
        changed,
        by_one,
        entropy,
        len(blob) / size,
        size / encode_s / 1e9,
        size / decode_s / 1e9,
    )


def statistics(base: torch.Tensor, new: torch.Tensor) -> tuple[float, float, float]:
    """Shares of values that changed, and of those by one unit; entropy in bytes a byte of the weights."""
    counts = torch.zeros(2**16, dtype=torch.float64)
    for start in range(0, new.numel(), 2**24):
        parts = [tensor[start : start + 2**24].view(torch.int16) for tensor in (base, new)]
        difference = (parts[1] - parts[0]).int() & 0xFFFF
        counts += torch.bincount(difference, minlength=2**16).cpu()
    shares = counts / new.numel()
    changed = 1 - float(shares[0])
    by_one = float(shares[1] + shares[0xFFFF]) / max(changed, 1e-12)
    some = shares[shares > 0]
    return changed, by_one, float(-(some * some.log2()).sum()) / 16


def baselines(new: torch.Tensor, base: torch.Tensor, threads: int) -> None:
    device = new.device.type
    if device == "cuda":
        part = new[: 2**30]
        copy = torch.empty_like(part)
        took_s, _ = seconds(lambda: copy.copy_(part), device, 3)
        print(f"copy on the device              {part.numel() * 2 / took_s / 1e9:8.1f} GB/s")
    sample = new[: SAMPLE_BYTES // 2].view(torch.uint8).cpu().numpy()
    before = base[: SAMPLE_BYTES // 2].view(torch.uint8).cpu().numpy()
    target = np.ones_like(sample)
    parts = [slice(at, at + 4 * 2**20) for at in range(0, len(sample), 4 * 2**20)]

    def copy_part(part: slice) -> None:
        target[part] = sample[part]

    def raw(part: slice) -> int:
        return squeeze(sample[part])

    def difference(part: slice) -> int:
        return squeeze(sample[part] ^ before[part])

    def squeeze(content: np.ndarray) -> int:
        return len(pyarrow.Codec("zstd", compression_level=1).compress(content, asbytes=True))

    def squeeze_all(squeezed: Callable[[slice], int]) -> list[int]:
        return list(pool.map(squeezed, parts))

    with ThreadPoolExecutor(threads) as pool:
        for name, work in (
            ("memcpy, one thread", lambda: copy_part(slice(None))),
            (f"memcpy, {threads} threads", lambda: list(pool.map(copy_part, parts))),
        ):
            took_s, _ = seconds(work, device, 3)
            print(f"{name:30s}  {len(sample) / took_s / 1e9:8.1f} GB/s")
        for name, squeezed in (("zstd of the raw bytes", raw), ("zstd of base XOR new", difference)):
            took_s, sizes = seconds(partial(squeeze_all, squeezed), device)
            share = sum(sizes) / len(sample)
            print(f"{name:30s}  {len(sample) / took_s / 1e9:8.1f} GB/s  {100 * share:6.2f} % of the bytes")


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where the model is trained; with cuda, blocks are sent there to find their changes, too",
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--measure", type=int, nargs="+", default=[2, 5, 10], help="steps to measure")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(
        f"shape {args.shape} trained on {args.device}, changes found there in blocks of"
        f" {BLOCK_BYTES[args.device] // 2**20} MiB, {args.threads} threads, best of {args.repeats}"
    )
    header = "     lr  step  changed  by one  entropy   delta  encode GB/s  decode GB/s   loss"
    rows: list[Row] = []
    for learning_rate in args.lr:
        trained = Trained(args.shape, learning_rate, args.device)
        if not rows:
            size = trained.flat.numel()
            print(f"{size / 1e6:.1f} million parameters, {2 * size / 1e9:.2f} GB of bf16\n{header}")
        for step in range(1, max(args.measure) + 1):
            base = trained.flat.clone() if step in args.measure else None
            loss = trained.step()
            if base is None:
                continue
            row = measure(base, trained.flat, learning_rate, step, args.threads, args.repeats)
            rows.append(row)
            print(
                f"{row.learning_rate:7.0e} {row.step:5d} {100 * row.changed:7.2f}% {100 * row.by_one:6.1f}%"
                f" {100 * row.entropy:7.2f}% {100 * row.delta:6.2f}% {row.encode_gbs:12.2f}"
                f" {row.decode_gbs:12.2f} {loss:6.2f}",
                flush=True,
            )
            if len(rows) == 1:
                baselines(trained.flat, base, args.threads)
                print(header)
            del base
        del trained
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    small = [row for row in rows if row.learning_rate <= 1e-6]
    if small:
        worst = max(row.delta for row in small)
        print(
            f"largest delta at 1e-6: {100 * worst:.2f} %; wanted 5 %: {'met' if worst < 0.05 else 'missed'}"
        )


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
