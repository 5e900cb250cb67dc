"""The verb `webgym` makes task files of the environment `web` from WebGym's."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from rl_agent.cli._options import verb_parser
from rl_agent.errors import ConfigError

SUMMARY = "write train.jsonl and test.jsonl for env=web from WebGym's task files"
EXAMPLE = """examples:
  rl-agent webgym --source ~/webgym --out ~/data/webgym
"""


def main(argv: list[str]) -> int:
    options = _parse(argv)

    from rl_agent.tasks.webgym import SPLITS, adapt, read_lines
    from rl_agent.tasks.write import write_splits

    dropped: Counter[str] = Counter()
    files: dict[str, list[dict[str, Any]]] = {}
    try:
        for split in SPLITS:
            files[split] = list(adapt(read_lines(options.source / f"{split}.jsonl"), dropped))
    except OSError as error:
        raise ConfigError(f"--source {options.source}: {error.filename}: {error.strerror}") from error
    except ValueError as error:  # also a line that is not UTF-8
        raise ConfigError(f"--source {options.source}: {error}") from error
    for split, lines in files.items():
        if not lines:
            raise ConfigError(
                f"--source {options.source}: {split}.jsonl has no task with a goal and a website"
            )
    write_splits(options.out, files)
    for reason, count in dropped.most_common():
        print(f"{count} dropped: {reason}")
    for split, lines in files.items():
        print(f"{len(lines)} tasks in {options.out / split}.jsonl")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = verb_parser("webgym", SUMMARY, EXAMPLE)
    parser.add_argument(
        "--source", type=Path, required=True, help="folder with WebGym's train.jsonl and test.jsonl"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files; they are replaced")
    options = parser.parse_args(argv)
    options.source, options.out = options.source.expanduser(), options.out.expanduser()
    return options
