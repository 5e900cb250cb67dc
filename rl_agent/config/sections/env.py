"""The group `env`: tasks, and the environments that run them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from rl_agent.config.sections.base import (
    Above0,
    CallersPath,
    Count,
    FreeForm,
    NotNegative,
    Positive,
    SampleSize,
    Seconds,
    Section,
    server_urls,
)
from rl_agent.types import Split


class EnvConfig(Section):
    kinds: dict[str, str]
    module_folders: tuple[CallersPath, ...]
    default_env: str
    server_size: Positive
    attempts: Positive
    workers: Count | None
    worker_timeout_s: Seconds
    worker_max_episodes: Positive
    worker_max_rss_mib: Above0
    servers: Annotated[tuple[str, ...], AfterValidator(server_urls)]
    servers_token_file: CallersPath | None
    server_timeout_s: Seconds
    train_tasks: str
    test_tasks: str
    train_tasks_rollout_size: SampleSize
    test_tasks_rollout_size: SampleSize
    test_tasks_repeat_times: Positive
    train_tasks_sampler: Literal["uniform", "ratio"]
    difficulty_ratio: dict[str, NotNegative]
    train_difficulty_max_steps: dict[str, Positive]
    test_difficulty_max_steps: dict[str, Positive]
    kwargs: dict[str, FreeForm]

    def tasks_file(self, split: Split, data_path: Path) -> Path:
        return data_path / (self.train_tasks if split == "train" else self.test_tasks)

    def max_steps(self, split: Split) -> dict[str, int]:
        is_train = split == "train"
        return self.train_difficulty_max_steps if is_train else self.test_difficulty_max_steps
