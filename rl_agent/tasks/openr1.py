"""OpenR1-Math-220k as tasks of the `math` environment.

Each problem is kept once, if its answer can be verified. The order, and with it what is test and what a
limit leaves out, is that of a digest of (seed, problem): it depends on neither the order nor the number of
the source's files, and a problem that is test with a limit is not train in a larger file of the same seed.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = (
    "problem",
    "answer",
    "problem_type",
    "question_type",
    "source",
    "uuid",
    "is_reasoning_complete",
    "correctness_count",
)
"""The columns that are read; the traces, nearly all of the dataset's size, are not."""

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""The instruction that the authors of the dataset gave the model that solved the problems."""

_NO_ANSWER = frozenset({"", "null", "none", "nan", "notfound", "not found"})


@dataclass(frozen=True, slots=True)
class PreparedTasks:
    """Lines of the two task files, and why rows were dropped."""

    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    rows: int
    dropped: Counter[str]


def prepare(
    rows: Iterable[Mapping[str, Any]], *, limit: int | None, test_fraction: float, seed: int
) -> PreparedTasks:
    """Train and test lines; `limit` bounds their sum, and at least one is test if there are two."""
    kept: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    count = 0
    for row in rows:
        count += 1
        reason = _reason_to_drop(row)
        name = hashlib.sha256(_text(row["problem"]).encode()).hexdigest()[:16]
        if reason is None and name in kept:
            reason = "the same problem again"
        if reason is None:
            kept[name] = _line(name, row)
        else:
            dropped[reason] += 1
    order = sorted(kept, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    chosen = [kept[name] for name in order[:limit]]
    if len(order) > len(chosen):
        dropped["over --limit"] = len(order) - len(chosen)
    test_count = max(round(len(chosen) * test_fraction), 1) if len(chosen) > 1 else 0
    return PreparedTasks(chosen[test_count:], chosen[:test_count], count, dropped)


def read_parquet(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Return the rows of Parquet files. Raises ValueError naming the file if a column is missing."""
    import pandas as pd
    import pyarrow.parquet as pq

    for path in paths:
        missing = set(COLUMNS) - set(pq.read_schema(path).names)
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}")
        yield from _records(pd.read_parquet(path, columns=list(COLUMNS)))


def read_hub(name: str, subset: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the rows of the train split of a dataset on the Hugging Face hub, or in its cache."""
    from datasets import load_dataset

    dataset = load_dataset(name, subset, split="train")
    missing = set(COLUMNS) - set(dataset.column_names)
    if missing:
        raise ValueError(f"{name} lacks the columns {', '.join(sorted(missing))}")
    yield from _records(dataset.select_columns(list(COLUMNS)).to_pandas())


def _records(frame: Any) -> Iterator[dict[str, Any]]:
    return (dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None))


def _reason_to_drop(row: Mapping[str, Any]) -> str | None:
    answer = _text(row["answer"]).lower()
    if not _text(row["problem"]):
        return "no problem"
    if "proof" in (answer, _text(row["question_type"]).lower(), _text(row["problem_type"]).lower()):
        return "a proof, which has no answer to compare with"
    if answer in _NO_ANSWER:
        return "no answer"
    return None


def _line(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    described = {
        field: _text(row[field]) or None for field in ("problem_type", "question_type", "source", "uuid")
    }
    return {
        "task_id": f"openr1-{name}",
        "prompt": f"{_text(row['problem'])}\n\n{INSTRUCTION}",
        "answer": _text(row["answer"]),
        "difficulty": _difficulty(row),
        "env": "math",
        **described,
    }


def _difficulty(row: Mapping[str, Any]) -> str:
    """Judge by how many of the dataset's traces are right: all is easy, at least half medium, less hard."""
    traces = row["is_reasoning_complete"]
    attempts = 0 if traces is None else len(traces)
    if not attempts:
        return "medium"
    right = row["correctness_count"] / attempts
    return "easy" if right >= 1 else "medium" if right >= 0.5 else "hard"


def _text(value: Any) -> str:
    """Return the string, trimmed; empty for pandas' several kinds of nothing."""
    return value.strip() if isinstance(value, str) else ""
