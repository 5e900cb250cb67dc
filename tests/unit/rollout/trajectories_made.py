"""Builds trajectories for tests of the store and the update."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from rl_agent.paths import RunPaths, rank_of
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories.line import TRAJECTORY, to_line
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.rollout.trajectories.shard import ShardHeader, start_shard
from rl_agent.types import (
    EpisodeKey,
    EpisodeSpec,
    Failure,
    Generation,
    Observation,
    Split,
    Status,
    Step,
    Task,
    Trajectory,
)
from tests.support.tiny_chat import tiny_tokenizer


def make_step(
    response: str = "8<eos>",
    *,
    observation: str = "3+5=",
    images: tuple[str, ...] = (),
    changed: bool = True,
    finish_reason: str = "stop",
    prompt: tuple[int, ...] = (1, 2, 3),
    context_reset: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Step:
    """A step whose response has the tokens of `tiny_chat`, if it is not given another tokenizer."""
    encoding = (tokenizer or _tokenizer()).encode(response, add_special_tokens=False)
    tokens = tuple(encoding.ids)
    generation = Generation(
        token_ids=tokens,
        logprobs=tuple(-0.5 for _ in tokens),
        text=response,
        finish_reason=finish_reason,
        weight_version_min=0,
        weight_version_max=0,
    )
    return Step(
        observation=Observation(observation, images),
        prompt_token_ids=prompt,
        generation=generation,
        action=response,
        reward=1.0,
        changed=changed,
        context_reset=context_reset,
    )


@cache
def _tokenizer() -> Tokenizer:
    return tiny_tokenizer()


def make_trajectory(
    index: int = 0,
    *,
    group: int = 0,
    attempt: int = 0,
    iteration: int = 1,
    split: Split = "train",
    reward: float | None = 1.0,
    status: Status = Status.COMPLETED,
    steps: tuple[Step, ...] | None = None,
    difficulty: str = "easy",
    system_prompt: str = "",
    extra: dict[str, object] | None = None,
) -> Trajectory:
    failed = status is not Status.COMPLETED
    extra = {"a": [1, None]} if extra is None else extra
    return Trajectory(
        key=EpisodeKey(f"task-{index}", group, attempt),
        task=Task(f"task-{index}", "3+5=", "reasoning_gym", difficulty, answer="8", extra=extra),
        split=split,
        iteration=iteration,
        status=status,
        steps=(make_step(),) if steps is None else steps,
        reward=None if failed else reward,
        system_prompt=system_prompt,
        model="base",
        weight_version_min=0,
        weight_version_max=0,
        seed=index,
        started_at=1_700_000_000.0 + index,
        duration_s=0.25,
        failure=Failure("EngineError", "gone") if failed else None,
    )


def sample_of(trajectories: Iterable[Trajectory], *, count: int | None = None) -> Sample:
    """Return the sample that asks for the episodes of these trajectories."""
    specs = [EpisodeSpec(each.key, each.task, max_steps=1, seed=each.seed) for each in trajectories]
    return Sample(specs, count=count)


def seeds_of(paths: RunPaths) -> list[int]:
    """Return the seeds of the recorded episodes of the first iteration, in the order of reading."""
    return [trajectory.seed for trajectory in read_iteration(paths, "train", 1, TRAJECTORY)]


def make_header(iteration: int = 1, split: Split = "train", created_at: float = 1.7e9) -> ShardHeader:
    return ShardHeader(
        run_id="run",
        split=split,
        iteration=iteration,
        seed=0,
        model="base",
        weight_version=0,
        sample_digest="abc",
        created_at=created_at,
    )


def write_shard(shard: Path, header: ShardHeader, *episodes: Trajectory, torn: bytes = b"") -> Path:
    """A trajectory file with these episodes, and perhaps half a line behind them.

    A finished one is added to the manifest of its iteration.
    """
    shard.parent.mkdir(parents=True, exist_ok=True)
    start_shard(shard, header)
    with shard.open("ab") as file:
        file.write(b"".join(map(to_line, episodes)) + torn)
    if not shard.name.endswith(".checkpoint"):
        add_to_manifest(shard, header, len(episodes))
    return shard


def add_to_manifest(shard: Path, header: ShardHeader, episodes: int) -> None:
    paths = RunPaths(shard.parent.parent)
    manifest = paths.manifest(header.split, header.iteration)
    before = json.loads(manifest.read_bytes()) if manifest.exists() else []
    entry = {"file": shard.name, "rank": rank_of(shard), "bytes": None, "episodes": episodes}
    manifest.write_text(json.dumps([*before, entry]))
