"""Computes the gradient of one mini-batch while its groups arrive.

    UpdateStep ── add(groups)* ──► micro-batches, forward and backward ── finish() ──► gradient and metrics

What holds: the gradient does not depend on how the groups arrived. An advantage needs its own group only;
each token's loss is summed unnormalised, and the sum is divided once, by the true totals of the mini-batch.
The weights do not change between `add` and `finish`. Every rank is given the same groups in the same order
and computes its share of them.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rl_agent.config.sections.grpo import BatchSettings, LossSettings
from rl_agent.monitor.flops import FORWARD
from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.data.batch import PackedBatch, Row, pack
from rl_agent.trainer.grpo.data.images import PlacedImage, placed_images
from rl_agent.trainer.grpo.data.packing import (
    Limits,
    Plan,
    budget_tokens,
    plan_full_micro_batch,
    plan_micro_batches,
)
from rl_agent.trainer.grpo.data.prefixes import Chain, chain_apart, chain_of, shared_prefixes
from rl_agent.trainer.grpo.data.samples import Group, TrainingSample
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel, Scorer
from rl_agent.trainer.grpo.step.advantages import STD_EPSILON, episode_advantages
from rl_agent.trainer.grpo.step.losses import (
    Clip,
    Sequences,
    behaviour_weights,
    denominator,
    kl_estimate,
    kl_weights,
    policy_surrogate,
    sequence_mask,
    token_weights,
)
from rl_agent.trainer.grpo.step.optimizer import scale_gradients
from rl_agent.trainer.grpo.step.start_weights import StartWeights
from rl_agent.trainer.grpo.step.step_metrics import StepMetrics


class UpdateStep:
    """Computes the gradient of one mini-batch; `reference` is the frozen policy of a KL term, or None.

    `start` has the weights that the iteration began with; None, or nothing kept: the policy has them itself.
    """

    def __init__(
        self,
        policy: PolicyModel,
        reference: Scorer | None,
        ranks: Ranks,
        loss: LossSettings,
        batch: BatchSettings,
        start: StartWeights | None = None,
    ) -> None:
        assert (reference is None) == (loss.kl_in == "none")
        self._policy = policy
        self._reference = reference
        self._ranks = ranks
        self._loss = loss
        self._batch = batch
        is_later = loss.proximal == "iteration" and start is not None and start.is_kept
        self._start = start if is_later else None
        self.more_passes = FORWARD if is_later else 0
        """The passes over all tokens beside those that every step makes."""
        self._comparison = Comparison(loss)
        self._clip = Clip(loss.clip_low, loss.clip_high, loss.dual_clip)
        self._limits: Limits = {
            "token_budget": batch.token_budget,
            "ranks": ranks.world_size,
            "image_cost": policy.image_cost,
        }
        self._shares = policy.shares_prefixes and (reference is None or reference.shares_prefixes)
        self.shared_prefixes: list[int] = []
        """Lengths of the prefixes, on all ranks, that were not computed again."""
        self._waiting: list[Group] = []
        self._rows: list[Row] = []
        self._being_read: tuple[Sequence[Row], Plan] = ([], [])
        """Micro-batches that wait for their images."""
        self._budget_tokens = 0
        """The tokens of groups that wait and of rows; too many where groups share prefixes among them."""
        self._metrics = StepMetrics(ranks)
        self._response_tokens = 0
        self._episodes = 0

    def add(self, groups: Iterable[Group]) -> None:
        """Take these groups in, and compute what fills a micro-batch of every rank; the rest waits."""
        for group in groups:
            self._waiting.append(group)
            rows = self._rows_of([(sample, 0.0) for sample in group.trained])
            self._budget_tokens += budget_tokens(_lengths(rows), self._chain(rows))
        if self._budget_tokens >= self._batch.token_budget * self._ranks.world_size:
            self._take_waiting()
            self._compute_full()

    def finish(self) -> dict[str, float]:
        """Compute what is left, and leave the gradient of the mean loss in the policy; returns metrics."""
        self._take_waiting()
        self._read_then_compute(self._rows, self._plan(self._rows))
        self._rows = []
        self._compute(*self._being_read)
        for scorer in (self._policy, self._reference):
            if scorer is not None and scorer.reader is not None:
                scorer.reader.forget()
        loss = self._loss
        divisor = denominator(
            self._response_tokens, self._episodes, loss.normalization, constant_length=loss.constant_length
        )
        if self._comparison.compares_each:
            divisor *= self._metrics.advantage_deviation() + STD_EPSILON
        norm = scale_gradients(self._policy, self._ranks, divisor)
        numbers = self._metrics.finish(divisor)
        numbers["computed_tokens"] = numbers["total_tokens"] - sum(self.shared_prefixes)
        return numbers | {"grad_norm": norm}

    def _compute_full(self) -> None:
        while True:
            lengths, chain = _lengths(self._rows), self._chain(self._rows)
            self._budget_tokens = budget_tokens(lengths, chain)
            plan, taken = plan_full_micro_batch(lengths, chain, _images(self._rows), **self._limits)
            if not taken:
                return
            self._read_then_compute(self._rows[:taken], plan)
            self._rows = self._rows[taken:]

    def _read_then_compute(self, rows: Sequence[Row], plan: Plan) -> None:
        """Begin to read the images of these rows, and compute those before; without images compute these."""
        reader = self._policy.reader
        if reader is None:
            self._compute(rows, plan)
            return
        own = (index for indices in plan[self._ranks.rank] for index in indices)
        reader.read_ahead(image.path for index in own for image in rows[index].images)
        before, self._being_read = self._being_read, (rows, plan)
        self._compute(*before)

    def _take_waiting(self) -> None:
        """Compute the advantages of the groups that wait, and make rows of what is trained on."""
        groups, self._waiting = self._waiting, []
        if not groups:
            return
        for sample in (sample for group in groups for sample in group.of_step):
            self._metrics.add_length(self._comparison.penalty(sample), is_cut=sample.is_cut)
        trained = [
            (sample, advantage)
            for group, advantages in zip(groups, self._advantages(groups), strict=True)
            for sample, advantage in zip(group.samples, advantages, strict=True)
            if group.is_trained(sample)
        ]
        for sample, advantage in trained:
            self._metrics.add_sample(sample, advantage)
            self._response_tokens += sample.response_tokens
            self._episodes += sample.response_tokens > 0
        self._rows += self._rows_of(trained)

    def _compute(self, rows: Sequence[Row], plan: Plan) -> None:
        if not rows:
            return
        if self._shares:
            for indices in (indices for of_rank in plan for indices in of_rank):
                self.shared_prefixes += shared_prefixes([rows[i].identities for i in indices])
        batches = list(self._micro_batches(rows, plan))
        of_start = [None] * len(batches) if self._start is None else self._start.logprobs(batches)
        for batch, start_logprobs in zip(batches, of_start, strict=True):
            loss = self._unnormalized_loss(batch, start_logprobs)
            # FSDP averages over the row; the sum is wanted.
            (loss * self._ranks.shard_size).backward()
            self._metrics.micro_batches += 1

    def _advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        """Compute for each group the advantages of all its samples."""
        samples = [sample for group in groups for sample in group.samples]
        kl = torch.zeros(len(samples), dtype=torch.float64)
        if self._loss.kl_in == "reward":
            kl = self._kl_of_samples(samples)
            is_trained = torch.tensor([group.is_trained(s) for group in groups for s in group.samples])
            self._metrics.add_known_tokens("kl", kl[is_trained])
        return [
            episode_advantages(group.samples, self._comparison, group_kl.numpy())
            for group, group_kl in zip(
                groups, kl.split([len(group.samples) for group in groups]), strict=True
            )
        ]

    @torch.no_grad()
    def _kl_of_samples(self, samples: Sequence[TrainingSample]) -> Tensor:
        """Sum the KL over each episode's response tokens; the same on all ranks."""
        total = torch.zeros(len(samples), dtype=torch.float64, device=self._ranks.device)
        rows = self._rows_of([(sample, 0.0) for sample in samples])
        for batch in self._micro_batches(rows, self._plan(rows)):
            logprobs, _ = self._policy(batch)
            kl = kl_estimate(logprobs, self._reference_logprobs(batch), self._loss.kl_estimator)
            total.index_add_(0, batch.sample, kl.double())
        self._ranks.sum(total)
        return total.cpu()

    def _rows_of(self, samples: Sequence[tuple[TrainingSample, float]]) -> list[Row]:
        """Make the rows of samples with their advantages."""
        image_token = self._policy.image_token
        return [
            Row(
                segment,
                advantage,
                sample.response_tokens,
                index,
                tuple(placed_images(segment, image_token) or ()),
            )
            for index, (sample, advantage) in enumerate(samples)
            for segment in sample.segments
        ]

    def _plan(self, rows: Sequence[Row]) -> Plan:
        return plan_micro_batches(_lengths(rows), self._chain(rows), _images(rows), **self._limits)

    def _chain(self, rows: Sequence[Row]) -> Chain:
        """Return the prefixes that rows have in common, as far as the models compute them once."""
        if not self._shares:
            return chain_apart(len(rows))
        return chain_of([row.identities for row in rows])

    def _micro_batches(self, rows: Sequence[Row], plan: Plan) -> Iterator[PackedBatch]:
        """Yield this rank's micro-batches, as many as every other rank's."""
        for indices in plan[self._ranks.rank]:
            yield pack(
                [rows[i] for i in indices],
                self._ranks.device,
                shares=self._shares,
                reader=self._policy.reader,
            )

    def _unnormalized_loss(self, batch: PackedBatch, of_start: Tensor | None) -> Tensor:
        """Compute Σ_t u_t (w_t L_t + β v_t KL_t − η H_t) of one micro-batch.

        `of_start`: logprobs under the weights that the iteration began with; None: those are the policy's.
        """
        settings = self._loss
        # First, so that its activations are gone when the policy's are kept.
        reference = self._reference_logprobs(batch) if settings.kl_in == "loss" else None
        logprobs, entropies = self._policy(batch)
        if settings.proximal == "behaviour":
            proximal = batch.behaviour
        else:
            proximal = logprobs.detach() if of_start is None else of_start
        sequences = Sequences(batch.sequence, batch.sequences)
        surrogate = policy_surrogate(logprobs, proximal, batch.advantages, sequences, settings)
        importance = behaviour_weights(
            proximal,
            batch.behaviour,
            settings.correction,
            low=settings.correction_low,
            high=settings.correction_high,
        ) * sequence_mask(proximal, batch.behaviour, sequences, settings)
        token_loss = importance * surrogate.loss
        if reference is not None:
            kl = kl_weights(importance, surrogate.ratio, self._clip) * kl_estimate(
                logprobs, reference, settings.kl_estimator
            )
            token_loss = token_loss + settings.kl_coefficient * kl
            self._metrics.add_tokens("kl", kl)
        if settings.entropy_coefficient:
            token_loss = token_loss - settings.entropy_coefficient * entropies
        weighted = token_weights(batch.response_tokens, settings.normalization) * token_loss
        self._metrics.add_tokens("entropy", entropies)
        self._metrics.add_tokens("clip_fraction", surrogate.is_clipped)
        self._metrics.add_tokens("importance_weight", importance)
        self._metrics.add_tokens("masked_share", importance == 0)
        if settings.temperature == 1:  # engines report logprobs as they are before the temperature
            self._metrics.add_mismatch(logprobs, batch.behaviour)
        self._metrics.add_ratio(surrogate.ratio)
        self._metrics.add_tokens("loss", weighted)
        return weighted.sum()

    @torch.no_grad()
    def _reference_logprobs(self, batch: PackedBatch) -> Tensor:
        assert self._reference is not None
        logprobs, _ = self._reference(batch)
        return logprobs


def _lengths(rows: Sequence[Row]) -> list[int]:
    return [len(row.segment) for row in rows]


def _images(rows: Sequence[Row]) -> list[tuple[PlacedImage, ...]]:
    return [row.images for row in rows]
