"""WebGym's task files as tasks of the environment `web`.

A line of theirs has `task_id`, `task_name`, `domain`, `subdomain`, `website`, `difficulty` (1 to 10),
`evaluator_reference` (facts, as a text, a list or groups of either) and `definite_answer`. Here it names the
page as `url`, the facts as `rubric`, and the answer, where there is one, as `answer`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SPLITS = ("train", "test")
_KEPT = ("domain", "subdomain")
_MAX_DEPTH = 6
_NO_ANSWER = frozenset({"", "null", "none", "n/a"})


def read_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a file with their line numbers. Raises ValueError naming the line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise ValueError(f"{path}:{number}: not JSON; one task a line is expected") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number}: not an object; one task a line is expected")
            yield number, record


def adapt(lines: Iterable[tuple[int, Mapping[str, Any]]], dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield tasks of this project; what cannot be one is counted in `dropped` by its reason."""
    seen: set[str] = set()
    for number, line in lines:
        name, goal, url = (
            _text(line.get("task_id")) or str(number),
            _text(line.get("task_name")),
            url_of(line),
        )
        reason = "no task_name" if not goal else "no website" if url is None else None
        if reason is None and name in seen:
            reason = "the same task_id again"
        if reason is not None:
            dropped[reason] += 1
            continue
        seen.add(name)
        yield {
            "task_id": f"webgym-{name}",
            "prompt": goal,
            "env": "web",
            "difficulty": _difficulty(line.get("difficulty")),
            "url": url,
            "answer": _answer(line.get("definite_answer")),
            "rubric": facts(line.get("evaluator_reference")),
            **{field: _text(line.get(field)) or None for field in _KEPT},
        }


def url_of(line: Mapping[str, Any]) -> str | None:
    """Return the address of a task's website, None where it names none."""
    website = _text(line.get("website"))
    if not website or any(blank in website for blank in " \t\r\n"):
        return None
    if "://" in website:
        return website if website.startswith(("http://", "https://")) else None
    return f"https://{website}"


def facts(nest: Any, depth: int = 0) -> list[str]:
    """Return every text of a nest of lists and objects, in its order."""
    if isinstance(nest, str):
        return [nest.strip()] if nest.strip() else []
    if depth >= _MAX_DEPTH or not isinstance(nest, list | dict):
        return []
    inner = list(nest.values()) if isinstance(nest, dict) else nest
    return [text for each in inner for text in facts(each, depth + 1)]


def _difficulty(value: Any) -> str | float:
    """Return what a task file here understands: a number, or a word."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value.strip()[:9])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return value if value in ("easy", "medium", "hard") else "medium"


def _answer(value: Any) -> str | None:
    text = _text(value)
    return None if text.lower() in _NO_ANSWER else text


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""
