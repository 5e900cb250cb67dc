"""Trains along with a run: iteration after iteration, as its episodes are recorded.

    rollout of iteration k ─ shards ─► LiveIteration ─► Trainer ─► version k ─► WeightFeed ─► engines
                                                           └── every few ─► model.pt
                                                           └── progress ─► whoever waits for version k

The progress file is written once the version is announced to the pool: from then on episodes of the next
iteration can ask for it.
"""

import json
import logging
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from rl_agent.config.plan import Plan
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.pool.gpu_turns import TrainerTurns, TurnFiles
from rl_agent.rollout.comparison import Comparison
from rl_agent.system.files import write_whole
from rl_agent.trainer.grpo.checkpoint.promote import ModelOrigin, promote
from rl_agent.trainer.grpo.checkpoint.states import StreamProgress, note_published, note_served
from rl_agent.trainer.grpo.data.live import LiveIteration
from rl_agent.trainer.grpo.data.order import ShuffledOrder, samples_of
from rl_agent.trainer.grpo.gpu_sharing.sharing import SharedDevices, WindowedSource, read_status
from rl_agent.trainer.grpo.model.parallel import Ranks, release_memory
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.feed import WeightFeed
from rl_agent.trainer.grpo.publish.served import export
from rl_agent.trainer.grpo.settings import StreamSettings, TrainerSettings
from rl_agent.trainer.grpo.trainer import Trainer
from rl_agent.weights.format.adapter import base_digest
from rl_agent.weights.server.server import SentBytes
from rl_agent.weights.store.tensor_sources import files_in

_log = logging.getLogger(__name__)
_LOOK_S = 0.5


class Stream:
    """Trains along with a run, alike on every rank, to the last iteration or until told to stop."""

    def __init__(
        self, settings: TrainerSettings, ranks: Ranks, policy: PolicyModel, trainer: Trainer
    ) -> None:
        assert settings.stream is not None
        self._settings = settings
        self._run: StreamSettings = settings.stream
        self._paths = RunPaths(self._run.log_path)
        self._ranks = ranks
        self._policy = policy
        self._trainer = trainer
        self._devices = self._shared_devices() if ranks.rank == 0 else None
        self._sent = SentBytes()
        """The bytes sent by the publication of the version before."""

    def _shared_devices(self) -> SharedDevices | None:
        sharing, manager = self._run.sharing, self._run.pool_manager
        if sharing is None or manager is None:
            return None
        max_staleness = self._settings.batch.max_staleness
        return SharedDevices(
            sharing.placement,
            TrainerTurns(TurnFiles(sharing.turn), timeout_s=sharing.timeout_s),
            lambda: read_status(manager.ask("/status"), sharing.engine, max_staleness=max_staleness),
            replaced=Comparison(self._settings.loss) if sharing.resamples else None,
            overlaps=max_staleness > 0,
        )

    def run(self) -> None:
        run, trainer = self._run, self._trainer
        trainer.served = run.served
        trainer.resume(run.start, after_iteration=run.first_iteration - 1)
        if self._devices is not None:
            self._devices.known = dict(trainer.windows)
        settings = self._settings
        feed = WeightFeed(
            run,
            self._ranks,
            dtype=settings.export_dtype,
            batch=settings.batch,
            base_digest=self._base_digest(),
            on_superseded=trainer.stop,
        )
        trainer.check_place = feed.check_place
        with feed:
            self._publish(feed)
            while trainer.iteration != run.last_iteration and not trainer.agree_to_stop():
                if self._train_iteration():
                    self._publish(feed)
                    trainer.save_at_times()  # only now: engines generate with the new weights meanwhile
            if trainer.is_stopping:
                trainer.save()
            elif run.ends_with_evaluation:
                self._serve_until_stopped()
            trainer.wait_saved()
            feed.check_place()
            if trainer.iteration == run.last_iteration:
                feed.discard()  # before, the next process goes on serving what was published

    def _base_digest(self) -> bytes | None:
        """Read once which model an adapter alone is for; None where all weights are published.

        Only rank 0 says so to engines. The files may change while it trains on what it has loaded.
        """
        if not self._settings.lora.is_published_alone:
            return None
        if self._ranks.rank != 0:
            return b""
        return base_digest(files_in(self._settings.model), threads=len(os.sched_getaffinity(0)))

    def _serve_until_stopped(self) -> None:
        """Let engines fetch the last version, and have the devices, until this process is asked to end."""
        if self._devices is not None:
            release_memory()
            self._devices.lend()
        while not self._trainer.agree_to_stop():
            time.sleep(_LOOK_S)

    def _train_iteration(self) -> bool:
        run, iteration = self._run, self._trainer.iteration + 1
        live = LiveIteration(
            self._paths,
            iteration,
            run_id=run.run_id,
            group_size=run.group_size,
            streamed=run.streamed,
            silence_timeout_s=run.silence_timeout_s,
        )
        return self._trainer.train_iteration(
            iteration,
            live if self._devices is None else self._windowed(live, self._devices),
            next_version=run.next_version,
            order=self._shuffled_order(iteration),
        )

    def _windowed(self, live: LiveIteration, devices: SharedDevices) -> WindowedSource:
        source = devices.source(live)
        self._trainer.windows = devices.known
        return source

    def _shuffled_order(self, iteration: int) -> ShuffledOrder | None:
        """Draw the order of an iteration; the same on every rank, rank 0 knows the run's plan."""
        if self._settings.batch.order == "arrival":
            return None
        samples = None
        if self._ranks.rank == 0:
            plan = Plan.read(self._paths.run_dir(self._run.run_id) / "plan.json")
            samples = json.dumps(samples_of(plan, iteration)).encode()
        groups = json.loads(self._ranks.bytes_of_first(samples) or b"{}")
        return ShuffledOrder(
            groups, steps=self._settings.mini_batches, seed=f"{self._settings.seed}/{iteration}"
        )

    def _publish(self, feed: WeightFeed) -> None:
        """Let the pool and the log path have what was trained; at a start, what they lack of it."""
        trainer, run = self._trainer, self._run
        if trainer.is_within_iteration:
            self._publish_begun(feed)
        elif trainer.is_catching_up:
            self._record(trainer.iteration_numbers())  # engines have later weights than these
        elif trainer.version > run.engines_version:
            began = time.monotonic()
            trainer.set_version(feed.publish(trainer.version, self._policy, self._record_number))
            published_s = time.monotonic() - began
            numbers = trainer.iteration_numbers()
            if self._is_model_due():
                self._put_at_model_link(numbers)
            if self._devices is not None:
                numbers |= self._devices.numbers()
            numbers |= {"publish_s": published_s, "model_s": time.monotonic() - began - published_s}
            before, self._sent = self._sent, feed.sent()
            sent = self._sent.since(before)
            numbers |= {"sent_tcp_bytes": sent.tcp, "sent_in_host_bytes": sent.in_host}
            numbers |= {"sent_paired_bytes": sent.paired}
            self._record(numbers)
            feed.wait_until_known(run.known_timeout_s, lambda: trainer.is_stop_requested)
        if self._ranks.rank == 0:
            progress = StreamProgress(os.getpid(), trainer.iteration, trainer.version)
            write_whole(run.progress, json.dumps(asdict(progress)))

    def _publish_begun(self, feed: WeightFeed) -> None:
        """Let the pool have the weights that this iteration began with, if it lacks them at a start.

        Where those were not kept (`loss.proximal`), it gets the ones of now under a new number.
        """
        trainer, run = self._trainer, self._run
        is_known = trainer.version <= run.engines_version or feed.has_published(trainer.version)
        if not is_known and not trainer.is_catching_up:
            number = trainer.version if trainer.start.is_kept else max(run.next_version, trainer.version)
            with trainer.start.in_place():
                trainer.set_version(feed.publish(number, self._policy, self._record_number))
        feed.wait_until_known(run.known_timeout_s, lambda: trainer.is_stop_requested)

    def _record_number(self, weight_version: int) -> None:
        note_published(self._settings.output, self._run.run_id, weight_version, self._trainer.iteration)

    def _record(self, numbers: dict[str, float]) -> None:
        """Append the iteration's line to the metrics; none where no step of it was made."""
        trainer = self._trainer
        if self._ranks.rank == 0 and numbers["steps"]:
            head = {"time": time.time(), "iteration": trainer.iteration, "phase": "update"}
            line = {f"update/{name}": value for name, value in numbers.items()}
            metrics.append(self._settings.metrics, head | line | {"update/weight_version": trainer.version})

    def _is_model_due(self) -> bool:
        trainer = self._trainer
        is_last = trainer.iteration == self._run.last_iteration
        is_due = is_last or trainer.iteration % self._settings.checkpoint.every == 0
        return is_due and trainer.served != self._paths.version_dir(trainer.version).name

    def _put_at_model_link(self, numbers: dict[str, float]) -> None:
        """Write the model and, in the background, its checkpoint; `model.pt` follows once both are whole.

        After the last iteration that is waited for: nobody would wait for it later.
        """
        trainer, run = self._trainer, self._run
        model, began = self._settings.output / "model", time.monotonic()
        trainer.wait_saved()  # the model before is in its place
        if self._ranks.rank == 0:
            _log.info("version %d: writing its checkpoint and model under %s", trainer.version, model.parent)
        trainer.save()
        dtype: torch.dtype = getattr(torch, self._settings.export_dtype)
        export(self._policy, self._ranks, self._settings.model, model, dtype)
        origin = ModelOrigin(trainer.version, run.run_id, trainer.iteration, dict(numbers))
        trainer.served = self._paths.version_dir(trainer.version).name
        if self._ranks.rank == 0:
            trainer.after_save(partial(self._promote, model, origin, began))
        if trainer.iteration == run.last_iteration:
            trainer.wait_saved()

    def _promote(self, model: Path, origin: ModelOrigin, began: float, checkpoint: Path) -> None:
        promote(
            self._paths,
            model,
            checkpoint,
            origin,
            current=self._settings.model,
            keep=self._run.keep_versions,
            pinned=(self._run.engines_model, self._settings.model.name),  # the latter gives the tokenizer
        )
        note_served(checkpoint, self._paths.version_dir(origin.version).name)
        _log.info("version %d is at model.pt after %.1f s", origin.version, time.monotonic() - began)
