#!/usr/bin/env python
"""Write seeded task files, `train.jsonl` and `test.jsonl`, for the environment `web`.

    python data/make_web_tasks.py miniwob --out ~/data/miniwob
    python data/make_web_tasks.py quickstart --out ~/data/web-quickstart
    python data/make_web_tasks.py miniwob --out ~/data/clicks --task click-button --task click-tab
    python data/make_web_tasks.py shop --out ~/data/shop

The tasks take turns, each time with another seed. Which split a seed belongs to follows from the seed
alone, so no two files made here, whatever their sizes, share the state of a page across splits.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import argparse
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_agent.env.web.miniwob import check_name, task_names
from rl_agent.system.flag_parser import FlagParser
from rl_agent.tasks.write import write_lines

QUICKSTART = ("click-widget", "click-button", "focus-text-2", "identify-shape")
"""Tasks of one click, which a model of a million parameters can see."""
SHOP_GOALS = {"price": "easy", "cheapest": "medium", "cart": "medium", "order": "hard"}


def split_of(seed: int) -> str:
    """The split of a seed: a fifth is test."""
    return "test" if hashlib.blake2b(str(seed).encode(), digest_size=8).digest()[0] % 5 == 0 else "train"


def seeds_of(split: str, first: int) -> Iterator[int]:
    """All seeds of a split from the first on."""
    return (seed for seed in itertools.count(first) if split_of(seed) == split)


def miniwob_line(name: str, seed: int) -> dict[str, Any]:
    """A task of MiniWoB++ with the seed of its page; the page itself tells the goal."""
    return {
        "task_id": f"miniwob-{name}-{seed}",
        "prompt": "Do what the page asks for.",
        "env": "web",
        "difficulty": "easy",
        "miniwob": name,
        "seed": seed,
    }


def shop_line(goal: str, seed: int) -> dict[str, Any]:
    """A task of the shop with the seed of its catalogue; the shop itself tells the goal."""
    return {
        "task_id": f"shop-{goal}-{seed}",
        "prompt": "Do what the shop's customer asks for.",
        "env": "web",
        "difficulty": SHOP_GOALS[goal],
        "site": "shop",
        "goal": goal,
        "seed": seed,
    }


def make_tasks(
    names: tuple[str, ...], split: str, size: int, seed: int, *, is_shop: bool
) -> list[dict[str, Any]]:
    """Make as many tasks as asked for, the names taking turns."""
    line = shop_line if is_shop else miniwob_line
    seeds = seeds_of(split, seed)
    return [line(names[position % len(names)], next(seeds)) for position in range(size)]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = FlagParser(description=__doc__, prog="make_web_tasks.py")
    parser.add_argument(
        "preset", choices=("miniwob", "quickstart", "shop"), help="which pages the tasks are about"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and test.jsonl")
    parser.add_argument(
        "--task", action="append", metavar="NAME", help="only this task; may be repeated (default: all)"
    )
    parser.add_argument("--train-size", type=int, default=1030, help="number of training tasks")
    parser.add_argument("--test-size", type=int, default=206, help="number of test tasks")
    parser.add_argument("--seed", type=int, default=0, help="where the seeds begin (default 0)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    is_shop = arguments.preset == "shop"
    presets = {"miniwob": task_names, "quickstart": lambda: QUICKSTART, "shop": lambda: SHOP_GOALS}
    names = tuple(arguments.task or presets[arguments.preset]())
    try:
        for name in names or ("",):
            if not is_shop:
                check_name(name)
            elif name not in SHOP_GOALS:
                raise ValueError(f"--task {name}: use one of {', '.join(SHOP_GOALS)}")
    except ValueError as error:
        raise SystemExit(f"make_web_tasks.py: {error}") from None
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split, size in (("train", arguments.train_size), ("test", arguments.test_size)):
        path = arguments.out / f"{split}.jsonl"
        write_lines(path, make_tasks(names, split, size, arguments.seed, is_shop=is_shop))
        print(f"{path}: {size} tasks of {len(names)} kinds")


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
