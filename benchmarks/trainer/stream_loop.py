"""Tokens generated and trained on per second: the streaming loop beside the synchronous one.

    python benchmarks/trainer/stream_loop.py --gpus 0,1 --shape 1.7b   # one trains, one is rented
    python benchmarks/trainer/stream_loop.py --gpus 0,1,2,3 --trainers 2 --shape 1.7b   # 2 of 4 train
    python benchmarks/trainer/stream_loop.py --gpus 0,1 --shape 1.7b --layouts disaggregated --iterations 9 \\
        trainer.batch.max_staleness=1   # tokens may be one version old
    python benchmarks/trainer/stream_loop.py --shape tiny --groups 8 --mean 60 --longest 300   # on a CPU

Everything is what a user would start: `scripts/run.sh` with `trainer=grpo pool=elastic`, and
`scripts/join_pool.sh` for each engine on a rented GPU. The first GPUs are the trainer's, the rest is rented.

    synchronous      the trainer's GPUs generate all episodes of an iteration, then train on them
    synchronous-all  the same on all GPUs
    disaggregated    the trainer's GPUs train, the rented ones generate; groups are trained on as they come
    hybrid           the trainer's GPUs generate, too, while that saves waiting
    spot             hybrid, iteration by iteration: alone at first, which is synchronous; an engine is rented
                     in the third and killed in the sixth, early among its episodes; another comes then, and
                     is killed in the ninth, late among its episodes (--kill-at)

With trainer.batch.max_staleness of 1 or more rollouts overlap, and short and long iterations take turns: nine
or more are needed, for the last one, which nothing follows, is fast.

The model has the real shape and random weights, but for one dimension of the residual stream that no layer
writes to, which gives the end of the turn the same chance at every token: lengths are geometric, long-tailed,
and cut at --longest. Rewards are drawn. This measures speed, never learning.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.qwen3_shapes import SHAPES
from benchmarks.trainer.stream_outcome import Outcome, print_iterations, print_table
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import Observation, StepResult, Task

LAYOUTS = ("synchronous", "synchronous-all", "disaggregated", "hybrid", "spot")
RENT_IN, KILL_IN = 3, (6, 9)
SIBLINGS = 8
TINY = SHAPES["tiny"] | {"head_dim": 32, "vocab_size": 512}
POLL_S, STOP_TIMEOUT_S = 0.1, 60.0


class Coin:
    """An environment of one turn whose reward is drawn from the response: there is nothing to learn."""

    def __init__(self) -> None:
        self._seed = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self._seed = seed
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        digest = hashlib.sha256(f"{self._seed} {action}".encode()).digest()
        return StepResult(Observation(""), reward=float(digest[0] % 2), done=True)

    async def close(self) -> None:
        pass


def make_model(folder: Path, shape: str, mean_tokens: int, longest: int, *, constant: float = 5) -> None:
    """Random weights whose responses end after `mean_tokens` on average.

    The smaller the `constant` of the residual stream, the faster can training change that.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sys.path.insert(0, str(PROJECT_ROOT / "data"))
    from tiny_tokenizer import TURN_END, save_tokenizer, train_tokenizer

    tokenizer = train_tokenizer(f"What is {a} + {b}? Answer: {a + b}" for a in range(30) for b in range(30))
    end = tokenizer.token_to_id(TURN_END)
    config = Qwen3Config(
        **(TINY if shape == "tiny" else SHAPES[shape]) | {"tie_word_embeddings": True},
        max_position_embeddings=40_960,
        eos_token_id=end,
    )
    folder.mkdir(parents=True)
    whole = with_words(json.loads(tokenizer.to_str()), config.vocab_size)
    save_tokenizer(Tokenizer.from_str(json.dumps(whole)), folder, max_length=longest + 128)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model = Qwen3ForCausalLM(config).eval()
    end_by_chance(model, end, mean_tokens, constant=constant)
    model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).save_pretrained(folder)


def with_words(state: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Give every id of a tokenizer.json a text.

    A decoder of streams keeps ids without one, and reads them again at each token.
    """
    vocabulary = state["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in state["added_tokens"]}
    vocabulary |= {f"Ġw{i}": i for i in range(len(vocabulary), vocab_size)}
    return state


def end_by_chance(
    model: Any, end: int, mean_tokens: int, *, constant: float = 5, never: Sequence[int] = ()
) -> None:
    """Let responses of a random model end after `mean_tokens` on average, and never have some tokens."""
    text = getattr(model.model, "language_model", model.model)
    with torch.no_grad():
        head = model.lm_head.weight
        for layer in text.layers:
            out = layer.self_attn.o_proj if hasattr(layer, "self_attn") else layer.linear_attn.out_proj
            out.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        text.embed_tokens.weight[:, 0] = head[:, 0] = constant
        head[[end, *never]] = 0
        # The chance rises with the entry: find the one at which it is 1 / mean_tokens on random text.
        ids = torch.randint(len(head), (1, 256), device=head.device)
        hidden = text(ids).last_hidden_state[0, 32:].float()
        low, high = 0.0, 1e4
        for _ in range(60):
            entry = (low + high) / 2
            head[end, 0] = entry
            chance = (hidden @ head.float().T).softmax(-1)[:, end].mean().item()
            low, high = (entry, high) if chance < 1 / mean_tokens else (low, entry)


@dataclass
class Bench:
    out: Path
    groups: int
    longest: int
    iterations: int
    gpus: list[str]
    trainers: int
    kill_at: tuple[float, float]
    overrides: list[str]
    rented_weights: list[str]
    """`KEY=VALUE` of the rented engines."""

    @property
    def is_gpu(self) -> bool:
        return bool(self.gpus)

    def run(self, layout: str) -> Outcome:
        """One run of the loop from its start to its end, unless the folder has it."""
        paths = RunPaths(self.out / layout)
        is_done = self.out / f"{layout}.done"
        if not is_done.exists():
            self.run_loop(layout, paths)
            is_done.touch()
        return Outcome.of(layout, paths, self.renting(layout))

    def renting(self, layout: str) -> int:
        """Devices that are rented."""
        return 0 if layout.startswith("synchronous") else self.rentable

    @property
    def rentable(self) -> int:
        return len(self.gpus) - self.trainers if self.is_gpu else 1

    def run_loop(self, layout: str, paths: RunPaths) -> None:
        port = free_port()
        rented: list[subprocess.Popen[bytes]] = []

        def rent() -> None:
            rented.append(self.rent(layout, len(rented), port))

        def take() -> None:
            kill(rented[-1], self.out / f"{layout}.rented-{len(rented)}.log")

        def replace() -> None:
            take()
            rent()

        # (iteration, share of its episodes, what happens then)
        events: list[tuple[int, float, Callable[[], None]]] = []
        if layout == "spot":
            (first, second), (early, late) = KILL_IN, self.kill_at
            events = [(RENT_IN, 0.0, rent), (first, early, replace), (second, late, take)]
        loop = start(self.command(layout, port, paths), self.out / f"{layout}.log", self.visible(layout))
        try:
            if layout in ("disaggregated", "hybrid"):
                for _ in range(self.rentable):
                    rent()
            while loop.poll() is None:
                time.sleep(POLL_S)
                if events and self.share_done(paths, events[0][0]) >= events[0][1]:
                    events.pop(0)[2]()
        finally:
            for process in (loop, *rented):
                stop(process)
        if loop.returncode:
            raise SystemExit(f"{layout}: exit {loop.returncode}; see {self.out / layout}.log")

    def share_done(self, paths: RunPaths, iteration: int) -> float:
        """Share of the iteration's episodes; negative before it begins."""
        shard = paths.checkpoint_shard("train", iteration)
        if not shard.exists():
            return -1.0
        return shard.read_bytes().count(b"\n") / (self.groups * SIBLINGS)

    def visible(self, layout: str) -> dict[str, str]:
        if not self.is_gpu:
            return {}
        training = self.gpus if layout == "synchronous-all" else self.gpus[: self.trainers]
        return {"CUDA_VISIBLE_DEVICES": ",".join(training)}

    def command(self, layout: str, port: int, paths: RunPaths) -> list[str]:
        placement = {"disaggregated": "disaggregated", "hybrid": "hybrid", "spot": "hybrid"}
        settings: dict[str, Any] = {
            "engine": "gpu" if self.is_gpu else "cpu",
            "trainer": "grpo" if self.is_gpu else "grpo_cpu",
            "pool": "elastic",
            "pool.port": port,
            "pool.local_engine": str(layout != "disaggregated").lower(),
            "pool.default_capacity": 512,
            "trainer.placement": placement.get(layout, "colocated"),
            "trainer.streamed": str(not layout.startswith("synchronous")).lower(),
            "trainer.mini_batches": 1,
            "trainer.loss.kl_in": "none",
            "trainer.checkpoint.every_steps": 100,
            "trainer.checkpoint.every": 100,
            "model_config.base_model": self.out / "model",
            "engine.max_model_len": self.longest + 128,
            "policy_config.max_new_tokens": self.longest,
            "env_config.train_tasks_rollout_size": self.groups,
            "env_config.test_tasks_rollout_size": 1,
            "env_config.server_size": self.groups * SIBLINGS,
            "env_config.module_folders": f"[{PROJECT_ROOT}]",
            "+env_config.kinds.coin": "benchmarks.trainer.stream_loop:Coin",
            "rollout.group_size": SIBLINGS,
            "rollout.max_vllm_sessions": self.groups * SIBLINGS,
            "rollout.completion_threshold": 1.0,
            "wandb.mode": "disabled",
        }
        if self.is_gpu:
            settings |= {"engine.gpu_memory_utilization": 0.5, "engine.dtype": "bfloat16"}
            settings |= {"trainer.parallel.activation_checkpointing": 1.0}
            settings |= {"trainer.parallel.offload_optimizer": "true"}
        else:
            settings |= {"engine.extra_args.kv-cache-memory-bytes": 67108864}
        overridden = {word.partition("=")[0] for word in self.overrides}
        settings = {key: value for key, value in settings.items() if key not in overridden}
        words = ["bash", "scripts/run.sh", "--data-path", self.out, "--log-path", paths.log_path]
        words += ["--rl-phase", "both", "--eval-interval", 100]
        words += ["--max-iterations", KILL_IN[-1] if layout == "spot" else self.iterations]
        return [str(w) for w in [*words, *(f"{k}={v}" for k, v in settings.items()), *self.overrides]]

    def rent(self, layout: str, number: int, port: int) -> subprocess.Popen[bytes]:
        """A worker in a process group of its own, on a GPU that its last one has left."""
        name = f"rented-{number + 1}"
        engine = ["--max-model-len", self.longest + 128, "--max-num-seqs", 512]
        words = ["bash", "scripts/join_pool.sh", "--manager", f"http://127.0.0.1:{port}", "--name", name]
        if self.is_gpu:
            engine += ["--dtype", "bfloat16", "--gpu-memory-utilization", 0.85]
            words += ["--gpus", self.gpus[self.trainers + number % self.rentable]]
        else:
            engine += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", 67108864]
            engine += ["--no-enable-chunked-prefill"]
        words += ["--capacity", "512", "--log", str(self.out / f"{layout}.{name}.vllm.log")]
        words.append(f"--engine-args={' '.join(map(str, engine))}")
        words += [word for item in self.rented_weights for word in ("--weights", item)]
        environment = {} if self.is_gpu else {"VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
        return start(words, self.out / f"{layout}.{name}.log", environment)


def start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=PROJECT_ROOT,
            start_new_session=True,
            env=os.environ | environment,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; its process group is killed if it does not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue


def kill(worker: subprocess.Popen[bytes], log: Path) -> None:
    """The machine is gone: worker and engine at once."""
    match = re.search(r"process (\d+)", log.read_text())
    os.killpg(worker.pid, signal.SIGKILL)
    if match:
        os.killpg(int(match[1]), signal.SIGKILL)
    worker.wait()


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--gpus", help="the trainer's and then the rented ones; default: the CPU")
    parser.add_argument("--trainers", type=int, default=1, help="of the GPUs; default: %(default)s")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="in this order; default: %(default)s")
    parser.add_argument("--iterations", type=int, default=4, help="of each; the first is not counted")
    parser.add_argument("--groups", type=int, default=64, help=f"of {SIBLINGS} episodes per iteration")
    parser.add_argument("--mean", type=int, default=800, help="tokens of a response")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a response")
    parser.add_argument(
        "--kill-at", type=float, nargs=2, default=(0.33, 0.76), help="shares of the iterations' episodes"
    )
    parser.add_argument(
        "--out", type=Path, help="model, tasks and logs, and what is not run again; default: temporary"
    )
    parser.add_argument(
        "--rented-weights",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as of join_pool.sh; with store=FOLDER they get versions as from another host's trainer",
    )
    parser.add_argument("overrides", nargs="*", help="key=value for run.sh")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    layouts = options.layouts.split(",")
    gpus = options.gpus.split(",") if options.gpus else []
    if gpus and not 0 < options.trainers <= len(gpus):
        parser.error(f"--trainers {options.trainers}: must be from 1 to the {len(gpus)} of --gpus")
    if unknown := set(layouts) - set(LAYOUTS):
        parser.error(f"--layouts {','.join(sorted(unknown))}: must be of {', '.join(LAYOUTS)}")
    with tempfile.TemporaryDirectory(prefix="stream-loop-") as folder:
        out = (options.out or Path(folder)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "model").exists():
            make_model(out / "model", options.shape, options.mean, options.longest)
        for split in ("train", "test"):
            tasks = (
                {"task_id": str(n), "prompt": f"{n} + 1 =", "env": "coin"} for n in range(options.groups)
            )
            lines = (json.dumps(task | {"difficulty": "easy"}) + "\n" for task in tasks)
            (out / f"{split}.jsonl").write_text("".join(lines))
        bench = Bench(
            out,
            options.groups,
            options.longest,
            options.iterations,
            gpus,
            options.trainers,
            tuple(options.kill_at),
            options.overrides,
            options.rented_weights,
        )
        outcomes: list[Outcome] = []
        for layout in layouts:
            outcome = bench.run(layout)
            if layout == "spot":
                print_iterations(outcome, alone=RENT_IN - 1)
                continue
            outcomes.append(outcome)
            print_table(outcomes)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
