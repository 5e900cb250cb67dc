"""A trainer that goes along with a rollout: every version reaches the pool, nothing is lost."""

import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rl_agent.monitor import catalog, metrics
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.system.files import remove
from rl_agent.trainer.grpo.checkpoint.states import (
    newest_served,
    next_number,
    read_published,
    trained_iteration,
)
from rl_agent.weights.download.receive import Announcement, Upstream
from rl_agent.weights.store.store import FULL, Snapshot
from rl_agent.weights.store.tensor_sources import tensor_at
from tests.integration.trainer.stream.stream_run import (
    GROUPS,
    PRICE_PER_HOUR,
    Rollout,
    Trainer,
    make_uniform_model,
    manager,
    stream_settings,
)
from tests.support.weight_transfers import new_host, source_at

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_uniform_model(tmp_path_factory.mktemp("base") / "model")


def fetch(told: dict, root: Path) -> Snapshot:
    """Fetch as an engine would: the announced version, from the announced address."""
    host, _, port = told["sources"][0].removeprefix("tcp://").rpartition(":")
    source = source_at((host, int(port)), token=told["transfer_token"].encode())
    with new_host(root) as receiving:
        announcement = Announcement(told["weight_version"], told["digest"])
        snapshot, _ = receiving.receiver.receive(
            announcement, [Upstream([source])], timeout_s=30.0, stop=threading.Event()
        )
        return snapshot


def wait_for_model(paths: RunPaths, timeout_s: float = 60) -> None:
    """Wait for `model.pt`, which follows the announcement once its files are on the disk."""
    deadline = time.monotonic() + timeout_s
    while not paths.model_link.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_served(told: dict, paths: RunPaths, root: Path) -> None:
    """The announced bytes are those of the model at `model.pt`."""
    snapshot, published = fetch(told, root), load_file(paths.model_link / "model.safetensors")
    view = snapshot.map(FULL)
    tensors = {entry.name: tensor_at(view, entry) for entry in snapshot.manifest.tensors}
    assert tensors.keys() == published.keys()
    assert all(torch.equal(tensors[name], published[name]) for name in published)


def test_an_iteration_becomes_a_version_in_the_pool_and_a_model(base, tmp_path):
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        trainer = Trainer(stream_settings(tmp_path, base, told.url, last_iteration=2))
        growing = trained_in_part(rollout, trainer, groups=2)  # while the rollout still runs
        record_rest(rollout, growing, first=2)
        assert trainer.wait_for_iteration(1).weight_version == 1
        wait_for_model(paths)
        assert_served(told.newest(), paths, tmp_path / "engine")
        assert versions.read_record(paths.version_dir(1)).iteration == 1
        rollout.whole(2, version=1)
        assert [process.wait(60) for process in trainer.processes] == [0]
    assert [record["update_step"] for record in steps(paths)] == [1, 2, 3, 4]
    assert all(record["trainer/staleness/0"] == 8 for record in steps(paths))
    assert_metrics(paths, seconds=time.monotonic() - told.began)
    assert [step["is_last"] for step in told.steps] == [False, False, True, True]
    assert all(0 <= step["waited_s"] <= step["lasted_s"] for step in told.steps)
    assert {step["price_per_hour"] for step in told.steps} == {PRICE_PER_HOUR}
    assert versions.served_folder(paths).name == "version-000002"
    assert newest_served(paths.streaming / "checkpoints") == "version-000002"  # a rollback would be noticed
    assert versions.rollback(paths).name == "version-000001"
    assert not (tmp_path / "weights").exists()  # shared memory is given back


def assert_metrics(paths: RunPaths, *, seconds: float) -> None:
    """All of them are documented; engines and trainer are paid for at their prices, for no time twice."""
    records = list(metrics.read(paths.metrics))
    assert {name for record in records for name in record if catalog.find(name) is None} == set()
    last = steps(paths)[-1]
    assert last["trainer/engines"] == 2
    assert last["trainer/engines_wanted"] == 3
    assert last["engines_wanted_because"] == "3 wanted: the trainer waited"
    assert last["trainer/engines_idle_share"] == pytest.approx(0.5)
    assert last["trainer/flops"] > 0 and "trainer/mfu" not in last  # of a CPU no peak is known
    most = seconds / 3600 * (PRICE_PER_HOUR + 7.2)
    iterations = {r["iteration"]: r["update/cost"] for r in records if "update/cost" in r}
    assert 0 < sum(iterations.values()) <= most
    assert sum(iterations.values()) == pytest.approx(sum(step["trainer/cost"] for step in steps(paths)))
    assert sum(step["trainer/recomputed_tokens"] for step in steps(paths)) == 7


@pytest.mark.extended
def test_killed_at_any_time_it_goes_on_with_what_was_recorded(base, tmp_path):
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        settings = stream_settings(tmp_path, base, told.url, last_iteration=2)
        trainer = Trainer(settings)
        growing = trained_in_part(rollout, trainer, groups=3)
        assert trainer.end(signal.SIGKILL) == [-signal.SIGKILL]
        record_rest(rollout, growing, first=3)
        trainer = Trainer(settings)
        trainer.wait_for_iteration(1)
        wait_for_model(paths)
        first = told.newest()
        assert trainer.end(signal.SIGKILL) == [-signal.SIGKILL]
        told.heard.clear()
        trainer = Trainer(again(settings, paths))
        assert told.wait_for(1)["digest"] == first["digest"]  # it is served on, from another address
        assert_served(told.newest(), paths, tmp_path / "engine")
        rollout.whole(2, version=1)
        assert [process.wait(60) for process in trainer.processes] == [0]
    trained = sum(record["trainer/episodes"] for record in steps(paths, unique=True))
    assert trained == 2 * GROUPS * 4
    assert sum(record["trainer/recomputed_tokens"] for record in steps(paths)) == 7  # counted once
    assert versions.served_folder(paths).name == "version-000002"


@pytest.mark.extended
def test_killed_as_soon_as_a_version_is_announced_it_trains_on_each_once(base, tmp_path):
    """Its checkpoint and model may be on the disk or not."""
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        settings = stream_settings(tmp_path, base, told.url, last_iteration=2)
        trainer = Trainer(settings)
        rollout.whole(1, version=0)
        trainer.wait_for_iteration(1)
        assert trainer.end(signal.SIGKILL) == [-signal.SIGKILL]
        trainer = Trainer(again(settings, paths))
        rollout.whole(2, version=1)
        assert [process.wait(60) for process in trainer.processes] == [0], trainer.log.read_text()[-3000:]
    assert sum(record["trainer/episodes"] for record in steps(paths, unique=True)) == 2 * GROUPS * 4
    assert versions.read_record(versions.served_folder(paths)).iteration == 2


@pytest.mark.extended
def test_dead_between_the_last_step_and_the_model_it_goes_on(base, tmp_path):
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        settings = stream_settings(tmp_path, base, told.url, last_iteration=1)
        trainer = Trainer(settings)
        growing = trained_in_part(rollout, trainer, groups=2)
        shutil.rmtree(settings.stream.store)  # it will not be able to publish
        record_rest(rollout, growing, first=2)
        assert [process.wait(60) for process in trainer.processes] == [1]
        assert [process.wait(60) for process in Trainer(settings).processes] == [0]
    assert versions.served_folder(paths).name == "version-000001"


@pytest.mark.extended
def test_told_to_stop_it_saves_and_goes_on_to_the_same_weights(base, tmp_path):
    """Two runs of the same episodes, one of them stopped in the middle of an iteration."""
    weights = []
    for name in ("whole", "stopped"):
        log_path = tmp_path / name
        log_path.mkdir()
        paths, rollout = RunPaths(log_path), Rollout(log_path)
        settings = stream_settings(log_path, base, None, last_iteration=1)
        trainer = Trainer(settings)
        growing = trained_in_part(rollout, trainer, groups=3)
        if name == "stopped":
            assert trainer.end() == [143]
            trainer = Trainer(settings)
        record_rest(rollout, growing, first=3)
        assert [process.wait(60) for process in trainer.processes] == [0]
        assert [record["update_step"] for record in steps(paths)] == [1, 2]  # nothing was done twice
        weights.append(load_file(paths.model_link / "model.safetensors"))
    whole, stopped = weights
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.extended
def test_streaming_without_staleness_equals_taking_turns(base, tmp_path):
    weights = []
    for streamed in (True, False):
        log_path = tmp_path / str(streamed)
        log_path.mkdir()
        paths, rollout = RunPaths(log_path), Rollout(log_path)
        trainer = Trainer(stream_settings(log_path, base, None, last_iteration=2, streamed=streamed))
        if streamed:
            record_rest(rollout, trained_in_part(rollout, trainer, groups=3), first=3)
        else:
            rollout.whole(1, version=0)
        rollout.whole(2, version=1)
        assert [process.wait(60) for process in trainer.processes] == [0], trainer.log.read_text()[-3000:]
        assert all(record["trainer/staleness/0"] == 8 for record in steps(paths))
        weights.append(load_file(paths.model_link / "model.safetensors"))
    streamed, in_turns = weights
    assert all(torch.equal(streamed[name], in_turns[name]) for name in streamed)


@pytest.mark.extended
def test_a_restarted_trainer_outlives_the_number_of_kept_models(base, tmp_path):
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    for iteration in range(1, 5):
        rollout.whole(iteration, version=iteration - 1)
    with manager() as told:
        settings = stream_settings(tmp_path, base, told.url, last_iteration=1)
        assert Trainer(settings).processes[0].wait(60) == 0
        settings = again(settings, paths)  # keeps two models, and makes three
        stream = settings.stream.model_copy(update={"last_iteration": 4, "engines_version": 1})
        trainer = Trainer(settings.model_copy(update={"stream": stream}))
        assert trainer.processes[0].wait(90) == 0, trainer.log.read_text()[-3000:]
    assert versions.served_folder(paths).name == "version-000004"


@pytest.mark.extended
def test_two_shards_publish_what_one_rank_would(base, tmp_path):
    models = []
    for ranks in (1, 2):
        log_path = tmp_path / str(ranks)
        log_path.mkdir()
        paths, rollout = RunPaths(log_path), Rollout(log_path)
        with manager() as told:
            trainer = Trainer(stream_settings(log_path, base, told.url, last_iteration=1), ranks=ranks)
            rollout.whole(1, version=0)
            told.wait_for(1)
            snapshot = fetch(told.newest(), log_path / "engine")
            assert [process.wait(60) for process in trainer.processes] == [0] * ranks
        view = snapshot.map(FULL)
        models.append({e.name: tensor_at(view, e).clone() for e in snapshot.manifest.tensors})
        published = load_file(paths.model_link / "model.safetensors")
        assert all(torch.equal(published[name], models[-1][name]) for name in published)
    for name, weight in models[0].items():  # Adam makes a gradient near its epsilon, and its rounding, large
        np.testing.assert_allclose(weight, models[1][name], rtol=0, atol=1e-4, err_msg=name)


def test_a_refused_version_is_announced_again_and_a_stop_meanwhile_saves(base, tmp_path):
    """The first rank waits for the manager at the stop, the second for the first one's next group."""
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        told.status = 503
        settings = stream_settings(tmp_path, base, told.url)
        seldom = settings.checkpoint.model_copy(update={"every": 99, "every_steps": 99})
        trainer = Trainer(settings.model_copy(update={"checkpoint": seldom}), ranks=2)
        rollout.whole(1, version=0)
        wait_for_log(trainer, "version 1 cannot be announced")
        told.status = 200
        trainer.wait_for_iteration(1)
        told.heard.clear()
        told.wait_for(1)  # and again, for a manager that was restarted

        told.status = 503
        rollout.whole(2, version=1)
        wait_for_log(trainer, "version 2 cannot be announced")
        assert trainer.end() == [143, 143], trainer.log.read_text()[-3000:]
    assert trained_iteration(paths.streaming) == 2


@pytest.mark.extended
def test_killed_long_after_its_checkpoint_it_trains_on_all_recorded(base, tmp_path):
    """Samples of versions that are made once more are no older for it."""
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    with manager() as told:
        settings = stream_settings(tmp_path, base, told.url, last_iteration=4)
        seldom = settings.checkpoint.model_copy(update={"every": 99, "every_steps": 99})
        settings = settings.model_copy(update={"checkpoint": seldom})
        trainer = Trainer(settings)
        for iteration in (1, 2, 3):
            rollout.whole(iteration, version=iteration - 1)
            trainer.wait_for_iteration(iteration)
        assert trainer.end(signal.SIGKILL) == [-signal.SIGKILL]
        rollout.whole(4, version=3)
        told.heard.clear()
        published = {
            "published": read_published(paths.streaming).of_run("run"),
            "next_version": next_number(paths),
        }
        again = Trainer(settings.model_copy(update={"stream": settings.stream.model_copy(update=published)}))
        assert [process.wait(120) for process in again.processes] == [0], again.log.read_text()[-3000:]
    assert not [name for record in steps(paths) for name in record if "rejected_groups" in name]
    assert [record["update_step"] for record in steps(paths)] == [*range(1, 7), *range(1, 9)]
    assert all(record["trainer/staleness/0"] == 8 for record in steps(paths))
    # Engines are not set back to the first iterations, and what was made again has a number of its own.
    assert sorted({heard["weight_version"] for heard in told.heard}) == [3, 4, 5]
    assert versions.served_folder(paths).name == "version-000005"


@pytest.mark.extended
def test_a_run_killed_between_models_reuses_no_version_number(base, tmp_path):
    """Nothing of the first life is left but what engines have sampled with its version 1."""
    rollout, digests = Rollout(tmp_path), []
    rollout.whole(1, version=0)
    for life in (1, 2):
        with manager() as told:
            settings = stream_settings(tmp_path, base, told.url)
            often = settings.checkpoint.model_copy(update={"every": 3, "every_steps": 99})
            rate = settings.optimizer.model_copy(update={"learning_rate": 1e-3 * life})
            stream = settings.stream.model_copy(update={"next_version": next_number(RunPaths(tmp_path))})
            changes = {"checkpoint": often, "optimizer": rate, "stream": stream}
            trainer = Trainer(settings.model_copy(update=changes))
            number = trainer.wait_for_iteration(1).weight_version
            assert told.newest()["weight_version"] == number == life
            digests.append(told.newest()["digest"])
            assert trainer.end(signal.SIGKILL) == [-signal.SIGKILL]
        remove(settings.stream.store)
    assert digests[0] != digests[1]


def trained_in_part(rollout: Rollout, trainer: Trainer, *, groups: int) -> Path:
    """The growing file of iteration 1 with so many groups, once a mini-batch of them is trained on."""
    growing = rollout.begin(1)
    for group in range(groups):
        rollout.group(growing, 1, group, version=0)
    paths = RunPaths(trainer.settings.stream.log_path)
    wait_until(lambda: len(steps(paths)) >= 1, trainer)
    return growing


def record_rest(rollout: Rollout, growing: Path, *, first: int) -> None:
    """The groups of iteration 1 from `first` on, and its end."""
    for group in range(first, GROUPS):
        rollout.group(growing, 1, group, version=0)
    rollout.end(growing, 1)


def again(settings, paths: RunPaths):
    """Return what a run would start the trainer with after a death: the model that is served by now."""
    served = versions.served_folder(paths)
    changes = {"served": served.name if served else "", "next_version": next_number(paths)}
    changes["published"] = read_published(paths.streaming).of_run(settings.stream.run_id)
    settings = settings.model_copy(update={"stream": settings.stream.model_copy(update=changes)})
    return settings.model_copy(update={"model": served, "first_version": 1}) if served else settings


def steps(paths: RunPaths, *, unique: bool = False) -> list[dict]:
    records = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    return list({record["update_step"]: record for record in records}.values()) if unique else records


def wait_for_log(trainer: Trainer, words: str) -> None:
    wait_until(lambda: words in trainer.log.read_text(), trainer)


def wait_until(is_true, trainer: Trainer, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert trainer.processes[0].poll() is None, trainer.log.read_text()[-3000:]
        assert time.monotonic() < deadline, trainer.log.read_text()[-3000:]
        time.sleep(0.02)
