"""Compares an update by an adapter alone with one by merged weights, on a real vLLM.

    python benchmarks/weights/adapter.py                                a tiny model on the CPU, two minutes
    python benchmarks/weights/adapter.py --device gpu --shape 1.7b      Qwen3-1.7B's shape, random weights
    python benchmarks/weights/adapter.py --device gpu --model FOLDER    a model of your own

A policy with an adapter of --rank on all linear layers, in fp32 as a trainer holds it, is published:

    merged    all weights
    added     the adapter, which the engine adds to the weights of the base model
    beside    the adapter, which the engine keeps beside its weights (vLLM's --enable-lora)

    publish   from the policy to a version with its digests
    serve     from the version to the first token with it: verified, paused, loaded, resumed
    rate      tokens per second of --requests responses of --tokens each, begun together, with the new version
    error     mean distance of their tokens' logprobs from those of the merged policy, by transformers in fp32
    moved     the same from those of the base model: what the adapter does, which is more than the error
"""

import argparse
import asyncio
import dataclasses
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.qwen3_shapes import SHAPES
from benchmarks.weights.pause import make_model, vllm
from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.served import ServedAdapter, ServedWeights, export
from rl_agent.weights.format.adapter import base_digest
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import files_in
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.settings import trainer_settings
from tests.support.weight_transfers import weights_config

WAYS = ("merged", "added", "beside")
VOCABULARY = range(5, 90)
"""Tokens of prompts, which all tokenizers of these models have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One way of an update."""

    size_bytes: int
    publish_s: float
    serve_s: float
    pause_s: float
    tokens_per_s: float
    error: float
    moved: float


class Engine:
    """A server, asked by its OpenAI routes."""

    def __init__(self, url: str, model: Path, args: argparse.Namespace) -> None:
        self._url, self._model, self._args = url, model, args

    async def _complete(self, session: aiohttp.ClientSession, prompt: list[int], **body: object) -> dict:
        body |= {"model": str(self._model), "prompt": prompt, "ignore_eos": True}
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def _all(self, prompts: list[list[int]], **body: object) -> list[dict]:
        unlimited = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=unlimited, timeout=timeout) as session:
            return await asyncio.gather(*(self._complete(session, prompt, **body) for prompt in prompts))

    def sample(self, prompts: list[list[int]]) -> tuple[float, list[list[int]], list[torch.Tensor]]:
        """The tokens per second of responses that are begun together, the responses, and their logprobs."""
        began = time.monotonic()
        wanted = {"max_tokens": self._args.tokens, "seed": 1, "logprobs": 0, "return_token_ids": True}
        answers = asyncio.run(self._all(prompts, **wanted))
        took_s = time.monotonic() - began
        choices = [answer["choices"][0] for answer in answers]
        assert all(len(choice["token_ids"]) == self._args.tokens for choice in choices)
        logprobs = [torch.tensor(choice["logprobs"]["token_logprobs"]) for choice in choices]
        rate = len(prompts) * self._args.tokens / took_s
        return rate, [choice["token_ids"] for choice in choices], logprobs

    def load(self, version: Snapshot) -> tuple[float, float]:
        """Seconds until the version is served, and of the pause in them."""

        async def load() -> float:
            async with aiohttp.ClientSession() as session:
                server = VllmServer(session, self._url, str(self._model), timeout_s=600)
                return (await server.load(version, previous=None)).pause_s

        began = time.monotonic()
        pause_s = asyncio.run(load())
        return time.monotonic() - began, pause_s


def make_policy(model: Path, args: argparse.Namespace, ranks) -> PolicyModel:
    """A policy whose adapter is as large as --change says: what it does is measured as `moved`."""
    settings = trainer_settings(model, model, lora={"rank": args.rank, "alpha": args.rank})
    policy = load_policy(settings, ranks)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            scale = 0.05 * args.change * args.rank**-0.5
            content = torch.randn(parameter.shape, generator=generator) * scale
            (parameter.to_local() if hasattr(parameter, "to_local") else parameter).data.copy_(content)
    return policy


def load_reference(folder: Path, args: argparse.Namespace) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model.to("cuda" if args.device == "gpu" else "cpu")


@torch.no_grad()
def distance(
    model: torch.nn.Module, prompts: list[list[int]], responses: list[list[int]], logprobs: list[torch.Tensor]
) -> float:
    """The mean distance of logprobs from a model's, for responses' tokens."""
    device = next(model.parameters()).device
    distances = []
    for prompt, response, given in zip(prompts, responses, logprobs, strict=True):
        tokens = torch.tensor([prompt + response], device=device)
        logits = model(tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        own = logits.gather(1, torch.tensor(response, device=device)[:, None])[:, 0].cpu()
        distances.append((own - given).abs().mean().item())
    return statistics.mean(distances)


def measure(
    way: str,
    args: argparse.Namespace,
    model: Path,
    policy: PolicyModel,
    root: Path,
    references: tuple[torch.nn.Module, torch.nn.Module],
) -> Outcome:
    is_alone = way != "merged"
    words = ("enable-lora=true", f"max-lora-rank={args.rank}") if way == "beside" else ()
    dtype = torch.bfloat16 if args.device == "gpu" else torch.float32
    digest = base_digest(files_in(model), threads=len(os.sched_getaffinity(0)))
    source = ServedAdapter(policy, digest, dtype) if is_alone else ServedWeights(policy, dtype)
    prompts = random_prompts(args)
    with (
        SnapshotStore(root / way, keep_versions=3) as store,
        vllm(args, model, root / f"log-{way}", *(f"engine.extra_args.{word}" for word in words)) as (url, _),
    ):
        engine, publisher = Engine(url, model, args), Publisher(store, weights_config(delta="never"))
        engine.sample(prompts)  # compiles
        took = []
        for version in (1, 2, 3):  # the first one also imports, and reads the base model
            began = time.monotonic()
            snapshot = publisher.publish(version, source)
            publish_s = time.monotonic() - began
            took.append((publish_s, *engine.load(snapshot)))
        samples = [engine.sample(prompts) for _ in range(3)]
        publish_s, serve_s, pause_s = (statistics.median(column) for column in zip(*took[1:], strict=True))
        size_bytes = snapshot.manifest.full.size_bytes
    error, moved = (distance(reference, prompts, *samples[-1][1:]) for reference in references)
    assert moved > 2 * error, f"the adapter is not seen in what is sampled: {moved} from the base, {error}"
    rate = statistics.median(sample[0] for sample in samples)
    return Outcome(size_bytes, publish_s, serve_s, pause_s, rate, error, moved)


def random_prompts(args: argparse.Namespace) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    shape = (args.requests, 64)
    return torch.randint(VOCABULARY.start, VOCABULARY.stop, shape, generator=generator).tolist()


def print_table(outcomes: dict[str, Outcome]) -> None:
    rows = {
        "version": [f"{o.size_bytes / 1e6:.1f} MB" for o in outcomes.values()],
        "publish": [f"{o.publish_s:.2f} s" for o in outcomes.values()],
        "serve": [f"{o.serve_s:.2f} s" for o in outcomes.values()],
        "pause in it": [f"{o.pause_s:.2f} s" for o in outcomes.values()],
        "rate": [f"{o.tokens_per_s:,.0f} tokens/s" for o in outcomes.values()],
        "error": [f"{o.error:.2e}" for o in outcomes.values()],
        "moved": [f"{o.moved:.2e}" for o in outcomes.values()],
    }
    print(f"{'':12}" + "".join(f"{way:>18}" for way in outcomes))
    for name, cells in rows.items():
        print(f"{name:12}" + "".join(f"{cell:>18}" for cell in cells))


@contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(disk), Path(memory)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=tuple(SHAPES))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--change", type=float, default=6.0, help="size of the adapter")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of a response")
    parser.add_argument("--gpu-memory", type=float, default=0.4, help="share that vLLM takes")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    args.streams, args.max_tokens = args.requests, args.tokens + 64
    with folders() as (disk, memory), single_rank() as ranks:
        model = args.model or make_model(disk / "model", args.shape)
        policy = make_policy(model, args, ranks)
        export(policy, ranks, model, disk / "merged", torch.float32)
        references = load_reference(disk / "merged", args), load_reference(model, args)
        outcomes = {way: measure(way, args, model, policy, memory, references) for way in args.ways}
    print_table(outcomes)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
