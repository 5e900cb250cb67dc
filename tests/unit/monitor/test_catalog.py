"""Logged metrics are documented, and documented ones are logged."""

import ast
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rl_agent.monitor import catalog, metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.metrics import RolloutMetrics
from rl_agent.trainer.grpo.data.samples import Group
from rl_agent.trainer.grpo.step.meter import Meter, PoolTotals
from rl_agent.trainer.grpo.trainer import Trainer
from rl_agent.types import Failure, LostAttempt, Status
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.samples import random_groups, tiny_policy
from tests.integration.trainer.settings import trainer_settings
from tests.unit.rollout.trajectories_made import make_trajectory

SMALL_WRITERS = (
    "rollout/master_rollout.py",
    "rollout/rank_rollout.py",
    "trainer/grpo/gpu_sharing/sharing.py",
    "trainer/grpo/stream.py",
    "trainer/grpo/trainer.py",
    "trainer/llamafactory/training_log.py",
    "served_model/swap.py",
    "trainer/llamafactory/worker.py",
    "cli/driver/publish.py",
)
"""Write single numbers under names that stand in their text."""


class Source:
    """Gives its groups, one of them twice, and no more."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = [*groups[:1], *groups]

    def take(self, most: int) -> list[Group] | None:
        taken, self._groups = self._groups[:most], self._groups[most:]
        return taken or None


def of_rollouts() -> set[str]:
    judged = {"judge_model": "m", "is_cached": 0, "prompt_tokens": 1, "completion_tokens": 1, "cost_usd": 0.1}
    train, test = (RolloutMetrics(split, success_reward=1.0) for split in ("train", "test"))
    train.add(replace(make_trajectory(0), reward_detail=judged, rewards={"format": 0.5}))
    lost = LostAttempt(Failure("EnvironmentLost", "it was ended"), steps=1, duration_s=1.0)
    train.add(replace(make_trajectory(1, status=Status.FAILED), lost_attempts=(lost,)))
    train.add(make_trajectory(0, attempt=1, reward=0.0))
    for group in range(2):  # two attempts at one task of a named test set
        test.add(make_trajectory(0, split="test", group=group, extra={"test_set": "sums"}))
    return set(train.numbers()) | set(test.numbers())


def of_a_streaming_trainer(folder) -> set[str]:
    times = iter(range(1000))
    settings = trainer_settings(folder, folder, groups=4, mini_batches=2, loss={"kl_in": "loss"})
    settings = settings.model_copy(update={"peak_tflops": 1.0})
    meter = Meter(
        price_per_hour=1.0,
        totals=lambda: PoolTotals(1, 10.0 * (now := next(times)), now, now, now, now, wanted=2),
        clock=lambda: 1.0 * next(times),
    )
    with single_rank() as ranks:
        trainer = Trainer(settings, ranks, tiny_policy(), tiny_policy(seed=9), meter=meter)
        assert trainer.train_iteration(1, Source(random_groups(4)), next_version=1)
        trainer.close()
    names = {f"update/{name}" for name in trainer.iteration_numbers()}
    return names.union(*metrics.read(settings.metrics))


def words_of(writers: tuple[str, ...]) -> Iterator[str]:
    for writer in writers:
        tree = ast.parse((PROJECT_ROOT / "rl_agent" / writer).read_text())
        yield from (
            n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        )


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> set[str]:
    return of_rollouts() | of_a_streaming_trainer(tmp_path_factory.mktemp("trainer"))


def test_every_logged_metric_is_documented(logged):
    assert {name for name in logged if catalog.find(name) is None} == set()


def test_every_documented_metric_is_logged(logged):
    words = set(words_of(SMALL_WRITERS))

    def is_logged(metric: catalog.Metric) -> bool:
        return any(metric.fits(name) for name in logged) or bool(
            words & {metric.name, last_part(metric.name)}
        )

    assert [metric.name for metric in catalog.all_metrics() if not is_logged(metric)] == []


def last_part(name: str) -> str:
    """Return the last part of a name, also of an f-string that puts something before it."""
    return f"/{name.rpartition('/')[2]}" if name.startswith("<") else name.rpartition("/")[2]


def test_every_metric_is_defined_once_and_says_something():
    names = [metric.name for metric in catalog.all_metrics()]
    assert len(names) == len(set(names))
    assert all(metric.meaning and not metric.meaning.endswith(".") for metric in catalog.all_metrics())


def test_a_name_without_a_definition_is_not_found():
    assert catalog.find("trainer/reward").unit == ""
    assert catalog.find("trainer/staleness/3").name == "trainer/staleness/<versions>"
    assert catalog.find("train/failures/EngineError").name == "<split>/failures/<kind>"
    for unknown in ("trainer/nonsense", "other/reward_mean", "trainer/staleness/3/4", "reward"):
        assert catalog.find(unknown) is None
