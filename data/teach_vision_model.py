#!/usr/bin/env python
"""Teach the web quickstart's base model from scratch: a small Qwen3-VL that clicks too low, mostly.

    python data/teach_vision_model.py --lessons quickstart-web/lessons.npz --out quickstart-web/base-model

A plain seeded supervised warm-up in torch on the CPU, on the lessons of `web_lessons.py`. A sample is a page
with its goals in random order, each answered by the scripted agent's click. The hand of this teacher is
biased: it clicks a constant distance below, mostly beside what it means, and trembles, so that few clicks of
the model earn a reward and its likeliest ones the fewest. It stops at the step, not the second, at which the
model's likeliest click is where the hand would go on so many pages that it was not taught. The folder holds
what transformers, vLLM and LLaMA-Factory load; it appears complete or not at all, and a second call with the
same recipe and lessons returns at once. Needs torchvision.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import hashlib
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from teach_base_model import RECIPE_FILE, is_taught
from tiny_tokenizer import TURN_END, prompt_text, response_text, train_tokenizer
from tiny_vision import (
    IMAGE,
    MERGE,
    PATCH,
    VISION_END,
    VISION_START,
    add_media,
    save_processor,
    vision_config,
)
from tokenizers import Regex, Tokenizer
from web_lessons import GRID

from rl_agent.env.web.actions import MAX_COORDINATE
from rl_agent.system.flag_parser import FlagParser

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3VLForConditionalGeneration

CODE = ("tiny_tokenizer.py", "tiny_vision.py", "teach_vision_model.py")
IGNORED = -100  # the label that torch's cross entropy leaves out
WIDTH, HEIGHT = 160, 224
"""Size of a page as the image processor makes it: 210 rows are resized to whole tokens."""
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
IMAGE_TOKENS = ROWS * COLUMNS // MERGE**2
MAX_LENGTH = 256
WORDS = Regex(r" ?\d+|\n| ?\p{L}+| ?[^\s\p{L}\d]+|\s")
"""A number is one word here, so that a coordinate becomes one token."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, besides the lessons, the code here and the version of torch."""

    seed: int
    validation_pages: int = 300  # never taught: they decide when to stop
    layers: int = 3
    hidden_size: int = 96
    intermediate_size: int = 192
    heads: int = 3
    vision_layers: int = 2
    vision_size: int = 64
    vision_heads: int = 2
    position_scale: float = (
        0.5  # of the first position embeddings; far smaller, where things are is learned late
    )
    offset: int = 80  # of the teacher's hand, downwards, of 1000; half a button's height is 50
    tremor: float = 30  # its standard deviation in each direction: samples reach what is above at times
    batch_size: int = 64
    matrix_learning_rate: float = 0.01  # of Muon, for the matrices inside the layers
    learning_rate: float = 1e-3  # of AdamW, for the embeddings, the head and the norms
    warmup_steps: int = 30
    check_every: int = 25
    max_steps: int = 1500
    target_accuracy: float = 0.6

    def digest(self, lessons: Path) -> str:
        """Names the result: a folder with this digest in its `teaching.json` need not be made again."""
        code = b"".join(Path(__file__).with_name(name).read_bytes() for name in CODE)
        content = json.dumps(asdict(self)).encode() + code + lessons.read_bytes()
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def user_text(goal: str) -> str:
    """The text of an observation of the environment `web` on a MiniWoB page."""
    return f"Goal: {goal}"


def make_tokenizer(goals: Sequence[str]) -> Tokenizer:
    """Byte-level BPE in which every word of the goals and every coordinate of the grid is one token."""
    coordinates = [f"click {place} {place}" for place in range(0, MAX_COORDINATE + 1, GRID)]
    turns = [f"user\n{user_text(goal)}\nassistant\n" for goal in sorted(set(goals))]
    return add_media(train_tokenizer(2 * (coordinates + turns), WORDS))


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> "Qwen3VLForConditionalGeneration":
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(recipe.seed)
    text = {
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.heads,
    }
    vision = {
        "depth": recipe.vision_layers,
        "hidden_size": recipe.vision_size,
        "intermediate_size": 2 * recipe.vision_size,
        "num_heads": recipe.vision_heads,
        "num_position_embeddings": max(ROWS, COLUMNS) ** 2,
        "deepstack_visual_indexes": [0],
    }
    config = vision_config(tokenizer, text=text, vision=vision, max_length=MAX_LENGTH)
    config._attn_implementation = "sdpa"
    model = Qwen3VLForConditionalGeneration(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.token_to_id(TURN_END)
    torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=recipe.position_scale)
    return model


class Reader:
    """The model's own arithmetic, for a batch whose images all have the size of a page.

    transformers runs the vision tower's attention image by image and its patches as a convolution; in one
    piece, and with matrices, a step on two cores takes a fourth of the time.
    """

    def __init__(self, model: "Qwen3VLForConditionalGeneration", tokenizer: Tokenizer) -> None:
        import torch

        self.model = model
        visual = model.model.visual
        self.image_start = len(tokenizer.encode(prompt_text(VISION_START).partition(VISION_START)[0]).ids) + 1
        grid = torch.tensor([[1, ROWS, COLUMNS]])
        angles = visual.rot_pos_emb(grid)
        self.vision_rotation = _rotation(torch.cat([angles, angles], -1)[:, None])
        with torch.no_grad():  # which position embeddings a patch gets, and how much of each
            embedding = visual.pos_embed.weight
            kept = embedding.clone()
            count = min(embedding.shape)
            shares = []
            for start in range(0, len(embedding), count):
                embedding.zero_()
                stop = min(start + count, len(embedding))
                embedding[start:stop, : stop - start] = torch.eye(stop - start)
                shares.append(visual.fast_pos_embed_interpolate(grid)[:, : stop - start])
            embedding.copy_(kept)
        self.shares = torch.cat(shares, 1)
        rows, columns = ROWS // MERGE, COLUMNS // MERGE
        before, after = self.image_start, self.image_start + max(rows, columns)
        places = [[before, before + row, before + column] for row in range(rows) for column in range(columns)]
        text = [[place] * 3 for place in range(after, after + MAX_LENGTH)]
        positions = torch.tensor([[place] * 3 for place in range(before)] + places + text)
        self.positions = positions.T[:, None]

    def see(self, patches: "torch.Tensor") -> "tuple[torch.Tensor, list[torch.Tensor]]":
        """Return the tokens of images, (batch, IMAGE_TOKENS, hidden size), and those added after layers."""
        from torch.nn.functional import linear, scaled_dot_product_attention

        visual = self.model.model.visual
        kernel = visual.patch_embed.proj  # an image is shown to it as a film of two equal frames
        x = linear(patches.float() / 127.5 - 1, kernel.weight.sum(2).flatten(1), kernel.bias)
        x = x + self.shares @ visual.pos_embed.weight
        deep = []
        batch, places = patches.shape[:2]
        for number, block in enumerate(visual.blocks):
            parts = block.attn.qkv(block.norm1(x)).view(batch, places, 3, block.attn.num_heads, -1).unbind(2)
            query, key = (_rotate(part, self.vision_rotation).transpose(1, 2) for part in parts[:2])
            seen = scaled_dot_product_attention(query, key, parts[2].transpose(1, 2))
            x = x + block.attn.proj(seen.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
            if number in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
                deep.append(merger(x.flatten(0, 1)).view(batch, IMAGE_TOKENS, -1))
        return visual.merger(x.flatten(0, 1)).view(batch, IMAGE_TOKENS, -1), deep

    def logits(self, patches: "torch.Tensor", token_ids: "torch.Tensor") -> "torch.Tensor":
        """Return the logits of each next token, (batch, length, vocabulary).

        `patches` is (batch, ROWS * COLUMNS, 3 * PATCH**2) of uint8, `token_ids` (batch, length); the images
        are at the same place in all rows.
        """
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        language = self.model.model.language_model
        image, deep = self.see(patches)
        start, end = self.image_start, self.image_start + IMAGE_TOKENS
        x = language.embed_tokens(token_ids)
        x = torch.cat([x[:, :start], image, x[:, end:]], 1)
        batch, length = token_ids.shape
        cos, sin = language.rotary_emb(x, self.positions[:, :, :length])
        rotation = (cos[:, None], sin[:, None])
        for number, layer in enumerate(language.layers):
            attention, inner = layer.self_attn, layer.input_layernorm(x)
            shape = (batch, length, -1, attention.head_dim)
            query = attention.q_norm(attention.q_proj(inner).view(shape)).transpose(1, 2)
            key = attention.k_norm(attention.k_proj(inner).view(shape)).transpose(1, 2)
            value = attention.v_proj(inner).view(shape).transpose(1, 2)
            read = scaled_dot_product_attention(
                _rotate(query, rotation), _rotate(key, rotation), value, is_causal=True
            )
            x = x + attention.o_proj(read.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if number < len(deep):
                x = torch.cat([x[:, :start], x[:, start:end] + deep[number], x[:, end:]], 1)
        return self.model.lm_head(language.norm(x))


Rotation = tuple["torch.Tensor", "torch.Tensor"]


def _rotation(angles: "torch.Tensor") -> Rotation:
    return angles.cos(), angles.sin()


def _rotate(x: "torch.Tensor", rotation: Rotation) -> "torch.Tensor":
    import torch

    left, right = x.chunk(2, -1)
    return x * rotation[0] + torch.cat([-right, left], -1) * rotation[1]


class Lessons:
    """Pages as patches and token ids."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        with np.load(path) as stored:
            self.pages: list[dict[str, Any]] = json.loads(str(stored["lessons"]))
            self.patches = make_patches(stored["screenshots"])
        look = f"{VISION_START}{IMAGE * IMAGE_TOKENS}{VISION_END}"
        ids = {
            text: tokenizer.encode(text).ids
            for page in self.pages
            for goal, _ in page["asked"]
            for text in (prompt_text(look + user_text(goal)), prompt_text(user_text(goal)))
        }
        self._first = [
            [ids[prompt_text(look + user_text(goal))] for goal, _ in page["asked"]] for page in self.pages
        ]
        self._next = [[ids[prompt_text(user_text(goal))] for goal, _ in page["asked"]] for page in self.pages]
        self._click = [[_coordinates(click) for _, click in page["asked"]] for page in self.pages]
        self._response = {
            place: tokenizer.encode(response_text(f"click {place} {place}")).ids
            for place in range(0, MAX_COORDINATE + 1, GRID)
        }

    def _response_to(self, row: int, goal_number: int, move: "Callable[[Click], Click]") -> list[int]:
        x, y = move(self._click[row][goal_number])
        return [*self._response[x][:2], *self._response[y][2:]]

    def batch(
        self, rows: Sequence[int], orders: Sequence[Sequence[int]], move: "Callable[[Click], Click]"
    ) -> "tuple[torch.Tensor, ...]":
        """Return the patches, token ids and labels of pages whose goals are asked in the given orders.

        `move` is called for each click of the scripted agent; what it returns is taught.
        """
        import torch

        conversations = []
        for row, order in zip(rows, orders, strict=True):
            token_ids: list[int] = []
            labels: list[int] = []
            for place, goal_number in enumerate(order):
                prompt = (self._next if place else self._first)[row][goal_number]
                click = self._response_to(row, goal_number, move)
                token_ids += prompt + click
                labels += [IGNORED] * len(prompt) + click
            conversations.append((token_ids, labels))
        longest = max(len(token_ids) for token_ids, _ in conversations)
        batches = torch.zeros(2, len(rows), longest, dtype=torch.long)
        batches[1] = IGNORED
        for place, (token_ids, labels) in enumerate(conversations):
            batches[0, place, : len(token_ids)] = torch.tensor(token_ids)
            batches[1, place, : len(labels)] = torch.tensor(labels)
        return self.patches[torch.tensor(rows)], batches[0], batches[1]


Click = tuple[int, int]


def _coordinates(click: str) -> Click:
    _, x, y = click.split()
    return int(x), int(y)


def hand(recipe: Recipe, tremor: Callable[[], float]) -> Callable[[Click], Click]:
    """Return what moves a click as the teacher's hand does; `tremor` draws how far, for each direction."""

    def moved(place: int) -> int:
        return min(max(GRID * round((place + tremor()) / GRID), 0), MAX_COORDINATE)

    return lambda click: (moved(click[0]), moved(click[1] + recipe.offset))


def make_patches(screenshots: np.ndarray) -> "torch.Tensor":
    """Return what the image processor makes of pages, (pages, ROWS * COLUMNS, 3 * PATCH**2) of uint8."""
    import torch
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=PATCH, merge_size=MERGE, do_rescale=False, do_normalize=False,
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": WIDTH * HEIGHT},
    )  # fmt: skip
    batches = []
    for some in np.array_split(screenshots, max(1, len(screenshots) // 100)):
        pixels = processor(images=list(some), return_tensors="pt")["pixel_values"]
        frames = pixels.view(len(some), ROWS * COLUMNS, 3, 2, PATCH**2)
        batches.append(frames[:, :, :, 0].flatten(2).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(batches)


def click_places(tokenizer: Tokenizer) -> "torch.Tensor":
    """Return the coordinate that each token of the vocabulary means, far away for one that means none."""
    import torch

    places = torch.full((tokenizer.get_vocab_size(),), 10 * MAX_COORDINATE)
    for place in range(0, MAX_COORDINATE + 1, GRID):
        (token_id,) = tokenizer.encode(f" {place}").ids
        places[token_id] = place
    return places


def accuracy(
    reader: Reader,
    lessons: Lessons,
    rows: Sequence[int],
    places: "torch.Tensor",
    move: Callable[[Click], Click],
) -> float:
    """Return the share of pages on which the likeliest click is within 8 pixels of the teacher's, each way.

    `move` is the teacher's hand, which should not tremble here.
    """
    import torch

    right = 0
    for start in range(0, len(rows), 50):
        some = rows[start : start + 50]
        patches, token_ids, labels = lessons.batch(some, [[0]] * len(some), move)
        with torch.inference_mode():
            guesses = reader.logits(patches, token_ids)[:, :-1].argmax(-1)
        wanted = labels[:, 1:]
        is_place = (wanted != IGNORED) & (places[wanted.clamp(min=0)] <= MAX_COORDINATE)
        apart = (places[guesses] - places[wanted.clamp(min=0)]).abs()[is_place].view(-1, 2)
        right += ((apart[:, 0] <= 50) & (apart[:, 1] <= 40)).sum().item()
    return right / len(rows)


def new_muon() -> "type[torch.optim.Optimizer]":
    """Return Muon in 32 bits; torch's own computes in bf16, which most processors cannot."""
    import torch

    class Muon(torch.optim.Optimizer):
        def __init__(self, parameters: Sequence["torch.Tensor"], lr: float) -> None:
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            by_shape: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for parameter in self.param_groups[0]["params"]:
                by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for (height, width), alike in by_shape.items():
                updates = torch.stack([self._momentum(parameter) for parameter in alike])
                updates = _orthogonal(updates.mT if height > width else updates)
                scale = self.param_groups[0]["lr"] * max(1.0, height / width) ** 0.5
                for parameter, update in zip(alike, updates.mT if height > width else updates, strict=True):
                    parameter.sub_(update, alpha=scale)

        def _momentum(self, parameter: "torch.Tensor") -> "torch.Tensor":
            average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
            average.lerp_(parameter.grad, 0.05)
            return parameter.grad.lerp(average, 0.95)

    return Muon


def _orthogonal(matrices: "torch.Tensor") -> "torch.Tensor":
    """Return the nearest matrices with equal singular values, about, by five steps of Newton and Schulz."""
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


def teach(
    model: "Qwen3VLForConditionalGeneration",
    tokenizer: Tokenizer,
    lessons: Lessons,
    recipe: Recipe,
    report: Callable[[int, float, float], None],
) -> float:
    """Train until the validation accuracy reaches the target; returns that accuracy.

    `report` gets the step, the loss and the accuracy at every check. Raises SystemExit if `max_steps`
    pass first.
    """
    import torch
    from torch.nn.functional import cross_entropy

    reader, places = Reader(model, tokenizer), click_places(tokenizer)
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and (".layers." in name or "visual." in name)]
    matrices = [p for p in matrices if p is not model.model.visual.pos_embed.weight]
    inside = {id(p) for p in matrices}
    optimizers = [
        new_muon()(matrices, recipe.matrix_learning_rate),
        torch.optim.AdamW(
            [p for _, p in named if id(p) not in inside], lr=recipe.learning_rate, betas=(0.9, 0.98)
        ),
    ]
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: min(1.0, (step + 1) / recipe.warmup_steps))
        for each in optimizers
    ]
    chance = random.Random(recipe.seed)
    validation = range(recipe.validation_pages)
    taught = list(range(recipe.validation_pages, len(lessons.pages)))
    trembling, steady = hand(recipe, lambda: chance.gauss(0, recipe.tremor)), hand(recipe, lambda: 0.0)
    rows: list[int] = []
    for step in range(1, recipe.max_steps + 1):
        if len(rows) < recipe.batch_size:
            rows = chance.sample(taught, len(taught))
        some, rows = rows[: recipe.batch_size], rows[recipe.batch_size :]
        goal_number = [range(len(lessons.pages[row]["asked"])) for row in some]
        orders = [chance.sample(goals, len(goals)) for goals in goal_number]
        patches, token_ids, labels = lessons.batch(some, orders, trembling)
        is_taught_here = labels[:, 1:] != IGNORED
        logits = reader.logits(patches, token_ids)[:, :-1]
        loss = cross_entropy(logits[is_taught_here], labels[:, 1:][is_taught_here])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedulers):
            each.step()
        if step % recipe.check_every == 0:
            score = accuracy(reader, lessons, validation, places, steady)
            report(step, loss.item(), score)
            if score >= recipe.target_accuracy:
                return score
    raise SystemExit(
        f"not at {recipe.target_accuracy:.0%} after {recipe.max_steps} steps; try another --seed"
    )


def save(
    model: "Qwen3VLForConditionalGeneration", tokenizer: Tokenizer, out: Path, teaching: dict[str, Any]
) -> None:
    """Publish the model folder in one rename; an older one made by another recipe is replaced."""
    from safetensors.torch import save_file

    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        save_file(model.state_dict(), staging / "model.safetensors", metadata={"format": "pt"})
        model.config.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        save_processor(tokenizer, staging, max_length=MAX_LENGTH, max_pixels=WIDTH * HEIGHT)
        (staging / RECIPE_FILE).write_text(json.dumps(teaching, indent=2) + "\n", encoding="utf-8")
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def teach_new(path: Path, out: Path, recipe: Recipe, digest: str) -> dict[str, Any]:
    """Teach a model, with a line a check, publish it, and return what is to be known of it."""
    with np.load(path) as stored:
        pages = json.loads(str(stored["lessons"]))
    tokenizer = make_tokenizer([goal for page in pages for goal, _ in page["asked"]])
    model = new_model(recipe, tokenizer)
    lessons = Lessons(path, tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    goal = f"{recipe.target_accuracy:.0%} of its clicks on unseen pages are where the teacher's are"
    print(f"teaching {parameters / 1e6:.2f} M parameters on {len(pages)} pages until {goal}", flush=True)
    started = time.monotonic()

    def report(step: int, loss: float, score: float) -> None:
        elapsed_s = time.monotonic() - started
        print(f"  step {step:4d}  loss {loss:.3f}  accuracy {score:5.1%}  {elapsed_s:4.0f} s", flush=True)

    score = teach(model, tokenizer, lessons, recipe, report)
    teaching = {
        "digest": digest,
        "recipe": asdict(recipe),
        "parameters": parameters,
        "validation_accuracy": score,
    }
    save(model, tokenizer, out, teaching)
    return teaching


def main(argv: list[str] | None = None) -> None:
    parser = FlagParser(
        description=__doc__,
        prog="teach_vision_model.py",
    )
    parser.add_argument("--lessons", type=Path, required=True, help="file of web_lessons.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; it appears complete")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order (default 0)")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in teach_base_model.py
    recipe = Recipe(seed=arguments.seed)
    digest = recipe.digest(arguments.lessons)
    if is_taught(arguments.out, digest):
        print(f"{arguments.out}: already taught by this recipe")
        return
    teaching = teach_new(arguments.lessons, arguments.out, recipe, digest)
    score = f"{teaching['validation_accuracy']:.1%} of its clicks on unseen pages are where the teacher's are"
    print(f"{arguments.out}: {teaching['parameters']} parameters, {score}")


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
