#!/usr/bin/env python
"""Write seeded task files, `train.jsonl` and `test.jsonl`, from reasoning-gym.

    python data/make_tasks.py quickstart --out quickstart/tasks
    python data/make_tasks.py examples --out data/reasoning_gym
    python data/make_tasks.py examples --out my_tasks --train-size 5000 --test-size 200 --seed 1 \\
        --source countdown:medium:min_numbers=3,max_numbers=3 --source countdown:hard

With `--env math` an answer may stand in a sentence, which reasoning-gym's verifiers take for a wrong one.
A line is a task: `task_id`, `prompt`, `env`, `difficulty`, `answer`, and, for reasoning-gym's own verifier,
`dataset` and `entry_metadata`. Which split a question belongs to is a property of what it asks (`held_out`),
so no two files made here, whatever their seeds and sizes, share a question across splits, nor one with its
numbers in another order.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import argparse
import hashlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_agent.system.flag_parser import FlagParser

Share = Literal["train", "test", "teach"]

DRAWS_PER_TASK = 200
"""A source is exhausted when it yields fewer than one new question in so many draws."""


@dataclass(frozen=True, slots=True)
class Source:
    """A reasoning-gym dataset at one difficulty."""

    dataset: str
    difficulty: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """Sources, and how many tasks are drawn from all of them together."""

    sources: tuple[Source, ...]
    train_size: int
    test_size: int


TWO_DIGITS = Source("chain_sum", "easy", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2})

PRESETS = {
    "quickstart": Preset((TWO_DIGITS,), train_size=4000, test_size=400),
    "examples": Preset(
        (
            TWO_DIGITS,
            Source("chain_sum", "hard", {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 4}),
            Source("spell_backward", "easy", {"min_word_len": 3, "max_word_len": 4}),
            Source("spell_backward", "hard", {"min_word_len": 8, "max_word_len": 10}),
            Source("letter_counting", "easy", {"min_words": 3, "max_words": 5}),
            Source("letter_counting", "hard", {"min_words": 10, "max_words": 15}),
            Source("gcd", "easy", {"max_value": 60}),
            Source("gcd", "hard", {"min_numbers": 3, "max_numbers": 3, "max_value": 1000}),
        ),
        train_size=320,
        test_size=80,
    ),
}


def split_of(question: str) -> Share:
    """The split a question belongs to: half train, a tenth test, the rest to teach base models from."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest) % 10
    if bucket == 0:
        return "test"
    return "train" if bucket <= 5 else "teach"


def draw_entries(source: Source, split: Share, seed: int) -> Iterator[dict[str, Any]]:
    """Yield distinct entries of one split, in an order that the seed decides, until none are new."""
    import reasoning_gym

    # reasoning-gym seeds entry i with seed + i: neighbouring seeds would repeat each other's entries.
    first = random.Random(f"{seed}/{source.dataset}/{source.difficulty}").randrange(2**40)
    entries = reasoning_gym.create_dataset(source.dataset, seed=first, size=2**31, **source.settings)
    seen: set[str] = set()
    index = last_new = 0
    while index - last_new < DRAWS_PER_TASK:
        entry = entries[index]
        index += 1
        question = entry["question"]
        if question not in seen and split_of(question) == split:
            seen.add(question)
            last_new = index
            yield entry


def task_line(source: Source, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry as a task; the id follows from the question, so the same question keeps its id."""
    digest = hashlib.blake2b(entry["question"].encode(), digest_size=6).hexdigest()
    return {
        "task_id": f"{source.dataset}-{source.difficulty}-{digest}",
        "prompt": entry["question"],
        "env": "reasoning_gym",
        "difficulty": source.difficulty,
        "answer": entry["answer"],
        "dataset": source.dataset,
        "entry_metadata": entry["metadata"],
    }


def make_tasks(sources: tuple[Source, ...], split: Share, size: int, seed: int) -> list[dict[str, Any]]:
    """Draw `size` tasks, the sources taking turns. Raises SystemExit if a source has too few questions."""
    tasks = []
    draws = [(source, draw_entries(source, split, seed)) for source in sources]
    for position in range(size):
        source, entries = draws[position % len(draws)]
        entry = next(entries, None)
        if entry is None:
            name = f"{source.dataset} ({source.difficulty})"
            raise SystemExit(f"{name} has no more {split} questions after {position} tasks; ask for fewer")
        tasks.append(task_line(source, entry))
    return tasks


def write_tasks(path: Path, tasks: list[dict[str, Any]]) -> None:
    """Write one JSON object per line; the file is complete or absent."""
    temporary = path.with_name(path.name + f".tmp-{os.getpid()}")
    lines = (json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def parse_source(text: str) -> Source:
    """Read `DATASET:DIFFICULTY[:key=value,...]`; values are JSON where they can be."""
    dataset, difficulty, *rest = text.split(":", 2)
    settings = {}
    for pair in filter(None, rest[0].split(",") if rest else []):
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return Source(dataset, difficulty, settings)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = FlagParser(description=__doc__, prog="make_tasks.py")
    parser.add_argument("preset", choices=PRESETS, help="which tasks, and how many unless said otherwise")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and test.jsonl")
    parser.add_argument("--train-size", type=int, help="number of training tasks")
    parser.add_argument("--test-size", type=int, help="number of test tasks")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same files (default 0)")
    parser.add_argument(
        "--source",
        action="append",
        type=parse_source,
        metavar="DATASET:DIFFICULTY[:KEY=VALUE,...]",
        help="take tasks from here instead of the preset's sources; may be repeated",
    )
    parser.add_argument(
        "--env", default="reasoning_gym", help="what scores the answers (default: %(default)s)"
    )
    parser.add_argument("--ending", metavar="TEXT", help="a sentence that is added to each question")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    from held_out import draw_tasks

    arguments = parse_arguments(argv)
    preset = PRESETS[arguments.preset]
    sources = tuple(arguments.source or preset.sources)
    sizes: dict[Share, int] = {
        "train": preset.train_size if arguments.train_size is None else arguments.train_size,
        "test": preset.test_size if arguments.test_size is None else arguments.test_size,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        path = arguments.out / f"{split}.jsonl"
        tasks = draw_tasks(sources, split, size, arguments.seed)
        for task in tasks:
            task["env"] = arguments.env
            task["prompt"] = " ".join(filter(None, (task["prompt"], arguments.ending)))
        write_tasks(path, tasks)
        print(f"{path}: {size} tasks, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
