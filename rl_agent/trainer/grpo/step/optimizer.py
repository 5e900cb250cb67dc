"""Runs PyTorch's AdamW in fp32 on this rank's part of every weight, its moments on the device or the host.

With g the gradient, m and v the moments (Kingma & Ba 2015; decoupled decay: Loshchilov & Hutter 2019):

    m ← β1 m + (1 − β1) g        v ← β2 v + (1 − β2) g²
    w ← w − lr λ w − lr (m / (1 − β1^t)) / (√(v / (1 − β2^t)) + ε)

It is one kernel for all weights. t counts the updates that were made: a step that is skipped, its gradient
not finite, leaves m and v as they were, and t with them. The learning rate's schedule counts all steps.

With `offload` the moments live in pinned host memory and visit the device one weight at a time: 8 bytes a
parameter of device memory less, for one trip over the bus in each direction a step.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rl_agent.config.sections.grpo import OptimizerSettings
from rl_agent.trainer.grpo.model.parallel import Ranks, gradients, local


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Compute the learning rate of the optimizer step with that number, from 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.decay_steps is None:
        return settings.learning_rate
    span = max(settings.decay_steps - settings.warmup_steps, 1)
    progress = min((step - settings.warmup_steps) / span, 1.0)
    if settings.schedule == "linear":
        return settings.learning_rate * (1 - progress)
    return settings.learning_rate * (1 + math.cos(math.pi * progress)) / 2


class AdamW:
    """AdamW whose `moments` are plain tensors under the names of their weights."""

    def __init__(self, module: nn.Module, settings: OptimizerSettings, *, offload: bool) -> None:
        self.steps = 0
        """Made, those skipped included."""
        self.updates = 0
        """The number of updates of the weights: the t of the moments."""
        self._settings = settings
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._is_offloaded = offload
        first, second = self._zeros(offload), self._zeros(offload)
        self.moments = {name: (first[name], second[name]) for name in self._parameters}

    def named(self) -> Iterable[tuple[str, nn.Parameter]]:
        return self._parameters.items()

    @torch.no_grad()
    def update(self) -> None:
        """Make one step along the gradients, at the rate of this step; a weight without one stays."""
        settings = self._settings
        rate = learning_rate(settings, self.steps)
        self.steps += 1
        self.updates += 1
        names = [name for name, parameter in self.named() if parameter.grad is not None]
        for part in [[name] for name in names] if self._is_offloaded else filter(None, [names]):
            weights = [local(self._parameters[name]) for name in part]
            kept = [moment for name in part for moment in self.moments[name]]
            moments = [moment.to(weights[0].device, non_blocking=True) for moment in kept]
            adamw(
                weights,
                [local(gradient) for name in part if (gradient := self._parameters[name].grad) is not None],
                moments[::2],
                moments[1::2],
                [],
                list(torch.full((len(part),), self.updates - 1.0, device=weights[0].device)),
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=rate,
                beta1=settings.beta1,
                beta2=settings.beta2,
                weight_decay=settings.weight_decay,
                eps=settings.epsilon,
            )
            for moment, updated in zip(kept, moments, strict=True):
                if moment is not updated:
                    moment.copy_(updated, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the host's copies are whole before anyone reads them

    def skip(self) -> None:
        """Count a step without an update: a gradient that is not finite would spoil the weights for good."""
        self.steps += 1

    def _zeros(self, offload: bool) -> dict[str, Tensor]:
        """Make a tensor for each weight, cut from one allocation: pinned memory comes in powers of two."""
        parts = {name: local(parameter) for name, parameter in self.named()}
        if offload and torch.cuda.is_available():
            memory = torch.zeros(sum(part.numel() for part in parts.values()), pin_memory=True)
        else:
            device = next((part.device for part in parts.values()), None)
            memory = torch.zeros(sum(part.numel() for part in parts.values()), device=device)
        cuts = memory.split([part.numel() for part in parts.values()])
        return {name: cut.view(part.shape) for (name, part), cut in zip(parts.items(), cuts, strict=True)}


def scale_gradients(module: nn.Module, ranks: Ranks, divisor: float) -> float:
    """Sum the gradients over the replicas and divide them; returns their norm over all ranks."""
    parts = list(gradients(module))
    for gradient in parts:
        ranks.sum(gradient, "replicate")
    squares = torch.zeros((), dtype=torch.float64, device=ranks.device)
    if parts:  # one call for all: a small model's step is as long as its calls
        torch._foreach_div_(parts, divisor)
        squares += torch.stack(torch._foreach_norm(parts)).double().square().sum()
    ranks.sum(squares, "shard")
    return math.sqrt(squares.item())


def clip_gradients(module: nn.Module, norm: float, max_norm: float) -> None:
    """Shorten the gradients to `max_norm` if they are longer."""
    if norm > max_norm:
        torch._foreach_mul_(list(gradients(module)), max_norm / norm)
