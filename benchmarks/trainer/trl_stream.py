"""TRL's AsyncGRPO on the work of stream_loop.py: tokens trained on per second, one GPU trains, one generates.

    python benchmarks/trainer/stream_loop.py --gpus 0,1 --shape 1.7b --layouts disaggregated --out DIR \\
        trainer.batch.max_staleness=1
    python benchmarks/trainer/trl_stream.py --gpus 0,1 --model DIR/model --staleness 1 --out DIR/trl

Both sample the same model file, whose responses end by chance (lengths are equal in distribution only), and
train on all tokens of 64 groups of 8 per step. It needs TRL 1.16 and vLLM with its nccl weight transfer. Two
things stand in for what a machine without the Hub lacks: PyTorch's varlen kernel for kernels-community's
FlashAttention 3, and Liger's norms, rotations and SwiGLU patched into Qwen3, as TRL's own switch for them
does not work with AsyncGRPO. The first step, in which the engine warms up, is not counted.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.stream_loop import SIBLINGS, start, stop
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.system.flag_parser import FlagParser

SERVER_TIMEOUT_S = 400.0
STEP_LOG = "steps.jsonl"


def serve(options: argparse.Namespace, port: int) -> "subprocess.Popen[bytes]":
    """Start a vLLM server as TRL's documentation asks for it, on the second GPU."""
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model)]
    words += ["--port", str(port), "--max-model-len", str(options.longest + 128), "--max-num-seqs", "512"]
    words += ["--gpu-memory-utilization", "0.85", "--logprobs-mode", "processed_logprobs"]
    words += ["--max-logprobs", "-1", "--weight-transfer-config", '{"backend":"nccl"}']
    environment = {"CUDA_VISIBLE_DEVICES": options.gpus.split(",")[1], "VLLM_SERVER_DEV_MODE": "1"}
    return start(words, options.out / "server.log", environment)


def wait_for(server: "subprocess.Popen[bytes]", url: str) -> None:
    """Return once the server answers. Raises SystemExit if it ends before."""
    deadline = time.monotonic() + SERVER_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("the server of TRL does not start; see server.log")


# --- the process that trains ---
def drawn_reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Return rewards that follow from the tokens alone: there is nothing to learn."""
    return [float(hash(tuple(ids)) % 2) for ids in completion_ids]


def attend(
    query: Any, key: Any, value: Any, ends_q: Any, ends_k: Any, most_q: int, most_k: int, scale: Any
) -> Any:
    """Causal attention of packed sequences by PyTorch's FlashAttention kernel; [tokens, heads, size]."""
    import torch

    if not query.is_cuda:
        pieces = [
            slice(first, last) for first, last in zip(ends_q.tolist(), ends_q.tolist()[1:], strict=False)
        ]
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(
                *(part[piece].transpose(0, 1)[None] for part in (query, key, value)),
                is_causal=True,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for piece in pieces
        ]
        return torch.cat(outputs)
    from torch.nn.attention.varlen import varlen_attn

    copies = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
    if scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    sizes = ends_q, ends_k, int(most_q), int(most_k)
    return varlen_attn(query.contiguous(), key.contiguous(), value.contiguous(), *sizes, window_size=(-1, 0))


class Kernel:
    """Has the function of the kernel that the Hub would give."""

    @staticmethod
    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_q: Any,
        cu_k: Any,
        max_q: int,
        max_k: int,
        softmax_scale: Any = None,
        **_: object,
    ) -> Any:
        return attend(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale)


def train(options: argparse.Namespace, **parts: Any) -> None:
    """Train by AsyncGRPOTrainer and write a line per step; `parts` replace its worker and weight transfer."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.chat_template_utils import qwen3_chat_template
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing

    is_gpu = torch.cuda.is_available()
    if is_gpu:
        from liger_kernel.transformers import apply_liger_kernel_to_qwen3

        apply_liger_kernel_to_qwen3(cross_entropy=False, fused_linear_cross_entropy=False)
    packing._flash_attn = lambda: Kernel
    counts = {"tokens": 0, "samples": 0}
    pack = packing.TreeRow.pack

    def counted(row: Any) -> Any:
        counts["tokens"] += sum(len(sample["input_ids"]) for sample in row.samples)
        counts["samples"] += len(row.samples)
        return pack(row)

    packing.TreeRow.pack = counted

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: object, **__: object) -> None:
            self._before, self._at = dict(counts), time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            if is_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            self._step = {name: counts[name] - self._before[name] for name in counts} | {
                "seconds": now - self._at
            }
            peak = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0
            self._step["peak_gib"] = round(peak, 1)
            self._before, self._at = dict(counts), now

        def on_log(self, *_: object, logs: dict[str, Any], **__: object) -> None:
            """Write the step, which TRL logs after its end, with the seconds in which no sample was there."""
            if "perf/rollout_wait_s" in logs:
                self._step["waiting_s"] = float(logs["perf/rollout_wait_s"])
                with (options.out / STEP_LOG).open("a") as log:
                    log.write(json.dumps(self._step) + "\n")

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.chat_template = (
        qwen3_chat_template  # it refuses to parse responses of templates it does not know
    )
    conversations = [[{"role": "user", "content": f"{n} + 1 ="}] for n in range(options.groups)]
    settings = AsyncGRPOConfig(
        output_dir=str(options.out / "trl"),
        vllm_server_base_url=options.url,
        num_generations=SIBLINGS,
        max_completion_length=options.longest,
        temperature=1.0,
        token_budget=options.token_budget,
        per_device_train_batch_size=max(SIBLINGS * options.groups // options.micro_batches, 1),
        gradient_accumulation_steps=options.micro_batches,
        max_staleness=options.staleness,
        max_steps=options.steps,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=is_gpu,
        use_cpu=not is_gpu,
        seed=0,
    )
    trainer = AsyncGRPOTrainer(
        model=str(options.model),
        reward_funcs=drawn_reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": conversations}),
        processing_class=tokenizer,
        **parts,
    )
    trainer.add_callback(Steps())
    trainer.train()
    os._exit(0)  # its threads still wait for the server


def print_table(options: argparse.Namespace) -> None:
    steps = [json.loads(line) for line in (options.out / STEP_LOG).read_text().splitlines()]
    assert len(steps) == options.steps and all(step["samples"] for step in steps), "not every step was made"
    counted = steps[1:]
    rates = [step["tokens"] / step["seconds"] for step in counted]
    total = sum(step["tokens"] for step in counted) / sum(step["seconds"] for step in counted)
    each = " ".join(f"{rate:,.0f}" for rate in rates)
    waiting = sum(step["waiting_s"] for step in counted) / sum(step["seconds"] for step in counted)
    heads = "tokens/s | each step | waiting | samples per step | peak GiB"
    print(f"| TRL AsyncGRPO | {heads} |\n" + "| --- " * 6 + "|")
    samples = " ".join(str(step["samples"]) for step in counted)
    peak = max(step["peak_gib"] for step in steps)
    row = f"{total:,.0f} | {each} | {waiting:.0%} | {samples} | {peak:.1f}"
    print(f"| staleness {options.staleness} | {row} |", flush=True)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument(
        "--gpus", default="0,1", help="the one that trains and the engine's; default: %(default)s"
    )
    parser.add_argument("--model", type=Path, required=True, help="folder that stream_loop.py made")
    parser.add_argument("--out", type=Path, required=True, help="logs")
    parser.add_argument("--staleness", type=int, default=4, help="of TRL, whose default is %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="the first is not counted; default: %(default)s")
    parser.add_argument(
        "--groups", type=int, default=64, help=f"of {SIBLINGS} responses; default: %(default)s"
    )
    parser.add_argument(
        "--longest", type=int, default=4096, help="tokens of a response; default: %(default)s"
    )
    parser.add_argument(
        "--token-budget", type=int, default=12288, help="of a micro-batch; default: %(default)s"
    )
    parser.add_argument("--micro-batches", type=int, default=35, help="of a step; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds; default: %(default)s")
    parser.add_argument("--url", help="train against this server, in this process (for this script)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.url:
        train(options)
    (options.out / STEP_LOG).unlink(missing_ok=True)
    port = free_port()
    server = serve(options, port)
    trainer = None
    try:
        wait_for(server, f"http://127.0.0.1:{port}")
        words = [sys.executable, *sys.argv, "--url", f"http://127.0.0.1:{port}"]
        gpu = options.gpus.split(",")[0]
        trainer = start(words, options.out / "trainer.log", {"CUDA_VISIBLE_DEVICES": gpu})
        if trainer.wait(options.timeout):
            raise SystemExit(f"TRL's trainer ended with status {trainer.returncode}; see trainer.log")
    finally:
        for process in (trainer, server):
            if process is not None:
                stop(process)
    print_table(options)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
