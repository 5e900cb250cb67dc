#!/usr/bin/env python
"""Teach the quickstart's base model from scratch: a small Qwen3 that knows nearly half of all two-digit sums.

    python data/teach_base_model.py --out quickstart/base_model --seed 0
    python data/teach_base_model.py --ship

A plain seeded supervised warm-up in torch on the CPU. It stops at the step, not the second, at which 45 % of
the unseen sums are answered right, so the result does not depend on the machine's speed. What it sees is
disjoint from every train and test task that `make_tasks.py` writes. The folder holds what transformers, vLLM
and LLaMA-Factory load; it appears complete or not at all, and a second call with the same recipe returns
at once.

What the default seed teaches lies in `data/base_model`, in bf16, and is taken from there as long as recipe
and code are those that made it; --ship makes it anew.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import argparse
import ast
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from make_tasks import PRESETS, make_tasks
from tiny_tokenizer import (
    END_OF_TEXT,
    TURN_END,
    VOCAB_SIZE,
    prompt_text,
    response_text,
    save_tokenizer,
    train_tokenizer,
)
from tokenizers import Tokenizer

from rl_agent.system.flag_parser import FlagParser

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3ForCausalLM

RECIPE_FILE = "teaching.json"
WEIGHTS_FILE = "model.safetensors"
SHIPPED = Path(__file__).with_name("base_model")
CODE = ("make_tasks.py", "tiny_tokenizer.py", "teach_base_model.py")
COMMAND_LINE = ("parse_arguments", "main")
DECIDING = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
IGNORED = -100  # the label that torch's cross entropy leaves out


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, besides the code here and the version of torch."""

    seed: int
    problems: int = 6000
    validation_problems: int = 500  # of those, never taught: they decide when to stop
    layers: int = 3
    hidden_size: int = 192
    intermediate_size: int = 512
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    max_length: int = 1024
    batch_size: int = 128
    matrix_learning_rate: float = 0.01  # of Muon, for the matrices inside the layers
    learning_rate: float = 2e-3  # of AdamW, for the embeddings, the head and the norms
    warmup_steps: int = 30
    check_every: int = 10
    max_steps: int = 600
    target_accuracy: float = 0.45

    def digest(self) -> str:
        """Names the result: a folder with this digest in its `teaching.json` need not be made again."""
        code = "".join(deciding_code(Path(__file__).with_name(name)) for name in CODE)
        return hashlib.blake2b((json.dumps(asdict(self)) + code).encode(), digest_size=8).hexdigest()


def deciding_code(path: Path) -> str:
    """Return a module's functions, classes and constants as written, but not what reads a command line.

    A new flag, help text or docstring makes no other weights, and no folder is made anew for it.
    """
    text = path.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if isinstance(node, DECIDING)]
    kept = [node for node in nodes if getattr(node, "name", "") not in COMMAND_LINE]
    code = "\n".join(ast.get_source_segment(text, node) or "" for node in kept)
    for part in (part for node in kept for part in ast.walk(node)):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            code = code.replace(ast.get_source_segment(text, part) or "", "")
    return code


@dataclass(frozen=True, slots=True)
class Lessons:
    """Problems as right-padded token ids; all prompts have the same length."""

    token_ids: "torch.Tensor"
    labels: "torch.Tensor"
    """The response's token ids at their places, IGNORED elsewhere."""
    prompt_length: int
    turn_end: int

    def rows(self, index: "torch.Tensor | slice") -> "Lessons":
        return replace(self, token_ids=self.token_ids[index], labels=self.labels[index])


def encode(tokenizer: Tokenizer, tasks: list[dict[str, Any]]) -> Lessons:
    """Tokenise tasks as one-turn conversations."""
    import torch

    prompts = [tokenizer.encode(prompt_text(task["prompt"])).ids for task in tasks]
    responses = [tokenizer.encode(response_text(task["answer"])).ids for task in tasks]
    prompt_length = len(prompts[0])
    if any(len(prompt) != prompt_length for prompt in prompts):
        raise ValueError("the prompts differ in length: batches here hold only the padding of responses")
    width = prompt_length + max(map(len, responses))
    token_ids = torch.zeros(len(tasks), width, dtype=torch.long)
    labels = torch.full_like(token_ids, IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = prompt_length + len(response)
        token_ids[row, :end] = torch.tensor(prompt + response)
        labels[row, prompt_length:end] = torch.tensor(response)
    return Lessons(token_ids, labels, prompt_length, tokenizer.token_to_id(TURN_END))


def response_logits(model: "Qwen3ForCausalLM", lessons: Lessons) -> "torch.Tensor":
    """Logits of the response's tokens, each predicted from the right tokens before it."""
    kept = lessons.token_ids.shape[1] - lessons.prompt_length + 1
    return model(input_ids=lessons.token_ids, logits_to_keep=kept, use_cache=False).logits[:, :-1]


def accuracy(model: "Qwen3ForCausalLM", lessons: Lessons) -> float:
    """Share answered exactly by greedy decoding.

    One pass is enough: greedy decoding gives the answer exactly when every token of the answer is the
    likeliest one after the right tokens before it.
    """
    import torch

    with torch.inference_mode():
        guesses = response_logits(model, lessons).argmax(-1)
    labels = lessons.labels[:, lessons.prompt_length :]
    ends = (labels == lessons.turn_end).cumsum(1)
    after_end = (ends > 0) & (labels != lessons.turn_end)  # the newline and the padding
    return ((guesses == labels) | after_end).all(1).float().mean().item()


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> "Qwen3ForCausalLM":
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=False,  # vLLM's CPU build keeps a tied head's old weights on a reload
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        dtype="float32",
        architectures=["Qwen3ForCausalLM"],
    )
    return Qwen3ForCausalLM(config)


def make_optimizers(model: "Qwen3ForCausalLM", recipe: Recipe) -> "list[torch.optim.Optimizer]":
    """Muon for the layers' matrices, AdamW for the rest: half the steps of AdamW alone."""
    import torch

    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def teach(
    model: "Qwen3ForCausalLM", lessons: Lessons, recipe: Recipe, report: Callable[[int, float, float], None]
) -> float:
    """Train until the validation accuracy reaches the target; returns that accuracy.

    `report` gets the step, the loss and the accuracy at every check. Raises SystemExit if `max_steps`
    pass first.
    """
    import torch
    from torch.nn.functional import cross_entropy

    validation = lessons.rows(slice(recipe.validation_problems))
    optimizers = make_optimizers(model, recipe)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: min(1.0, (step + 1) / recipe.warmup_steps))
        for each in optimizers
    ]
    order = torch.Generator().manual_seed(recipe.seed)
    for step in range(1, recipe.max_steps + 1):
        rows = torch.randint(
            recipe.validation_problems, len(lessons.token_ids), (recipe.batch_size,), generator=order
        )
        batch = lessons.rows(rows)
        labels = batch.labels[:, batch.prompt_length :]
        loss = cross_entropy(
            response_logits(model, batch).flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedulers):
            each.step()
        if step % recipe.check_every == 0:
            score = accuracy(model, validation)
            report(step, loss.item(), score)
            if score >= recipe.target_accuracy:
                return score
    raise SystemExit(
        f"not at {recipe.target_accuracy:.0%} after {recipe.max_steps} steps; try another --seed"
    )


def save(model: "Qwen3ForCausalLM", tokenizer: Tokenizer, out: Path, teaching: dict[str, Any]) -> None:
    """Publish the model folder in one rename; an older one made by another recipe is replaced."""
    from safetensors.torch import save_file

    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        save_file(model.state_dict(), staging / WEIGHTS_FILE, metadata={"format": "pt"})
        model.config.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        save_tokenizer(tokenizer, staging, max_length=model.config.max_position_embeddings)
        (staging / RECIPE_FILE).write_text(json.dumps(teaching, indent=2) + "\n", encoding="utf-8")
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def ship(model: "Qwen3ForCausalLM", teaching: dict[str, Any]) -> None:
    """Write the weights, which are bf16 values already, to where later calls take them from."""
    import torch
    from safetensors.torch import save_file

    SHIPPED.mkdir(exist_ok=True)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    save_file(weights, SHIPPED / WEIGHTS_FILE, metadata={"format": "pt"})
    content = (SHIPPED / WEIGHTS_FILE).read_bytes()
    record = teaching | {"blake2b": hashlib.blake2b(content, digest_size=16).hexdigest()}
    (SHIPPED / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def shipped_teaching(recipe: Recipe) -> dict[str, Any] | None:
    """Return the record of the weights that are shipped; None if another recipe or other code made them.

    Raises SystemExit if the weights are not those that were shipped.
    """
    teaching: dict[str, Any] = json.loads((SHIPPED / RECIPE_FILE).read_text(encoding="utf-8"))
    if teaching["digest"] != recipe.digest():
        return None
    content = (SHIPPED / WEIGHTS_FILE).read_bytes()
    if hashlib.blake2b(content, digest_size=16).hexdigest() != teaching.pop("blake2b"):
        raise SystemExit(
            f"{SHIPPED / WEIGHTS_FILE} is damaged; `git checkout` it, or make it anew with --ship"
        )
    return teaching


def take_shipped(model: "Qwen3ForCausalLM") -> None:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(SHIPPED / WEIGHTS_FILE))


def round_weights(model: "Qwen3ForCausalLM") -> None:
    """Round to bf16, so that a model is the same whether it was taught here or shipped."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))


def is_taught(out: Path, digest: str) -> bool:
    """Return whether `out` holds the result of this very recipe. Raises SystemExit if it holds anything
    else.
    """
    record = out / RECIPE_FILE
    if record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))["digest"] == digest
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} exists and is not a model taught here; give another --out")
    return False


def make_tokenizer() -> Tokenizer:
    """The tokenizer of the base model: its merges come from the example tasks."""
    tasks = make_tasks(PRESETS["examples"].sources, "teach", 400, seed=0)
    return train_tokenizer(f"user\n{task['prompt']}\nassistant\n{task['answer']}" for task in tasks)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = FlagParser(description=__doc__, prog="teach_base_model.py")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="folder of the model; it appears complete")
    what.add_argument("--ship", action="store_true", help=f"make {SHIPPED.name}/ beside this file anew")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order (default 0)")
    arguments = parser.parse_args(argv)
    if arguments.ship and arguments.seed != 0:
        parser.error("--ship makes the model of the default seed")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    # Threads that spin while they wait make this eight times slower beside any other busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
    recipe = Recipe(seed=arguments.seed)
    if arguments.out and is_taught(arguments.out, recipe.digest()):
        print(f"{arguments.out}: already taught by this recipe")
        return
    tokenizer = make_tokenizer()
    model = new_model(recipe, tokenizer)
    teaching = None if arguments.ship else shipped_teaching(recipe)
    if teaching is None:
        teaching = teach_new(model, tokenizer, recipe)
    else:
        take_shipped(model)
    words = f"{teaching['parameters']} parameters, {teaching['test_accuracy']:.1%} of the test sums are right"
    if arguments.ship:
        ship(model, teaching)
    else:
        save(model, tokenizer, arguments.out, teaching)
    print(f"{arguments.out or SHIPPED}: {words}")


def teach_new(model: "Qwen3ForCausalLM", tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    """Teach a model, with a line a check, and return what is to be known of it."""
    sources = PRESETS["quickstart"].sources
    lessons = encode(tokenizer, make_tasks(sources, "teach", recipe.problems, seed=0))
    test = encode(tokenizer, make_tasks(sources, "test", PRESETS["quickstart"].test_size, seed=0))
    parameters = sum(p.numel() for p in model.parameters())
    goal = f"{recipe.target_accuracy:.0%} of unseen sums are right"
    print(f"teaching {parameters / 1e6:.2f} M parameters until {goal}", flush=True)
    started = time.monotonic()

    def report(step: int, loss: float, score: float) -> None:
        elapsed_s = time.monotonic() - started
        print(f"  step {step:4d}  loss {loss:.3f}  accuracy {score:5.1%}  {elapsed_s:4.0f} s", flush=True)

    validation_accuracy = teach(model, lessons, recipe, report)
    round_weights(model)
    return {
        "digest": recipe.digest(),
        "recipe": asdict(recipe),
        "parameters": parameters,
        "validation_accuracy": validation_accuracy,
        "test_accuracy": accuracy(model, test),
    }


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
