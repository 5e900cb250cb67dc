"""Keeps the weights that an iteration began with: the proximal policy of its later steps.

    first step      the policy still has them: nothing is kept, nothing computed
    first update    keep ─► a copy of what is trained, on the devices, each rank its part
    later steps     exchanged with the policy's for a forward pass, and back ─► log π_prox of every token
    end             release

An exchange moves bits and computes nothing, so the policy is afterwards what it was before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rl_agent.trainer.grpo.data.batch import PackedBatch
from rl_agent.trainer.grpo.model.parallel import local
from rl_agent.trainer.grpo.model.policy import PolicyModel

_AT_ONCE = 16
"""Weights that are exchanged by one call, and for the moment lie in memory three times."""


class StartWeights:
    """Keeps a copy of the sharded weights that an iteration began with; every rank calls it alike."""

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy
        self._trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._kept: dict[str, Tensor] = {}

    @property
    def is_kept(self) -> bool:
        """Return whether the policy's weights are others by now."""
        return bool(self._kept)

    def parts(self) -> dict[str, Tensor]:
        """Return this rank's part of the kept weights, by their names."""
        return self._kept

    def keep(self) -> None:
        """Copy the policy's weights as they are, before an update changes them."""
        self._kept = {name: local(parameter.detach()).clone() for name, parameter in self._trained.items()}

    def release(self) -> None:
        """Drop the copy: the iteration is over."""
        self._kept = {}

    def logprobs(self, batches: Sequence[PackedBatch]) -> list[Tensor]:
        """Score the response tokens of each micro-batch under the kept weights."""
        with self.in_place(), torch.no_grad():
            return [self._policy(batch)[0] for batch in batches]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the policy the kept weights, if there are any, for the time of the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        names = list(self._kept)
        for some in (names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)):
            weights, kept = [local(self._trained[name]) for name in some], [self._kept[name] for name in some]
            now = [torch.empty_like(weight) for weight in weights]
            torch._foreach_copy_(now, weights)
            torch._foreach_copy_(weights, kept)
            torch._foreach_copy_(kept, now)
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # what was gathered before is of the other weights
