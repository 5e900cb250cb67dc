"""Caches the answers of a judge on disk, one JSON file each, so that no question is paid for twice.

Files are written whole, so many rollouts can share a folder. A file that cannot be read counts as absent.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rl_agent.system.files import write_whole


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """The answer of a judge as the API returned it."""

    content: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


_ANSWER = TypeAdapter(JudgeAnswer)


class JudgeCache:
    """A folder of answers; its methods block on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, question: dict[str, Any]) -> JudgeAnswer | None:
        try:
            return _ANSWER.validate_json(self._path(question).read_bytes(), strict=True)
        except (OSError, ValidationError):
            return None

    def put(self, question: dict[str, Any], answer: JudgeAnswer) -> None:
        path = self._path(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(answer), ensure_ascii=False))

    def _path(self, question: dict[str, Any]) -> Path:
        canonical = json.dumps(question, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"
