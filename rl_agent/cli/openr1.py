"""The verb `openr1` makes task files from OpenR1-Math-220k."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_agent.cli._options import verb_parser
from rl_agent.errors import ConfigError, UsageError

SUMMARY = "write train.jsonl and test.jsonl from OpenR1-Math-220k (Parquet or hub name)"
EXAMPLE = """examples:
  rl-agent openr1 --source open-r1/OpenR1-Math-220k --out ~/data/openr1
  rl-agent openr1 --source ~/OpenR1-Math-220k/data --out ~/data/openr1 --limit 5000
"""


def main(argv: list[str]) -> int:
    options = _parse(argv)

    from rl_agent.tasks.openr1 import prepare
    from rl_agent.tasks.write import write_splits

    try:
        prepared = prepare(
            _rows(options.source, options.subset),
            limit=options.limit,
            test_fraction=options.test_fraction,
            seed=options.seed,
        )
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError) as error:  # pyarrow's and the hub's errors are of these
        raise ConfigError(f"--source {options.source}: {str(error).splitlines()[0]}") from error
    if not prepared.train or not prepared.test:
        raise ConfigError(f"--source {options.source}: fewer than two problems with an answer to verify")
    files = {"train": prepared.train, "test": prepared.test}
    write_splits(options.out, files)
    print(f"{prepared.rows} rows read")
    for reason, count in prepared.dropped.most_common():
        print(f"{count} dropped: {reason}")
    for split, lines in files.items():
        print(f"{len(lines)} tasks in {options.out / split}.jsonl")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = verb_parser("openr1", SUMMARY, EXAMPLE)
    parser.add_argument(
        "--source", required=True, help="a Parquet file, a folder of them, or a dataset's name on the hub"
    )
    parser.add_argument(
        "--subset",
        help="subset of a dataset on the hub: default, extended or all (default: the hub's default)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files; they are replaced")
    parser.add_argument("--limit", type=int, help="at most this many tasks, train and test together")
    parser.add_argument(
        "--test-fraction", type=float, default=0.02, help="share that becomes test (default: 0.02)"
    )
    parser.add_argument("--seed", type=int, default=0, help="selects and orders the tasks (default: 0)")
    options = parser.parse_args(argv)
    if options.limit is not None and options.limit < 2:
        raise UsageError(f"--limit {options.limit}: at least 2, one to train on and one to test")
    if not 0 < options.test_fraction < 1:
        raise UsageError(f"--test-fraction {options.test_fraction}: a number between 0 and 1")
    options.out = options.out.expanduser()
    return options


def _rows(source: str, subset: str | None) -> Iterator[dict[str, Any]]:
    from rl_agent.tasks.openr1 import read_hub, read_parquet

    path = Path(source).expanduser()
    if subset is not None and path.exists():
        raise UsageError(
            f"--subset {subset}: --source {source} is a file or a folder; name the one of the subset"
        )
    if path.is_file():
        return read_parquet([path])
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise ConfigError(f"--source {source}: no .parquet file in this folder")
        return read_parquet(files)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return read_hub(source, subset)
    raise ConfigError(f"--source {source}: neither a file, nor a folder, nor a hub name (owner/dataset)")
