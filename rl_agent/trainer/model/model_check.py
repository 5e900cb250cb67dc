"""Checks that a loaded model has gradients, and scores several sequences at once as it scores them alone.

The small copy (`probe.py`) has shown in fp32 that the code is right. This is about the kernels of the device
and the precision of the layers, with the model's own sizes and weights: packed attention against the one that
transformers writes out, one sequence after the other. In half precision both are noisy; the difference of
two attentions of transformers measures how much.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rl_agent.errors import ConfigError
from rl_agent.trainer.model.parallel import Ranks
from rl_agent.trainer.model.policy import PolicyModel
from rl_agent.trainer.model.probe import TOLERANCE, ScoringMode, one_line, scores

_LONGEST_WINDOW = 512
"""That a sequence of the check reaches beyond."""
_TIMES_NOISE, _LEAST = 4.0, 0.02
"""Bounds in half precision: in differences between attentions, and in standard deviations of the scores."""


def checked_scoring_mode(
    policy: PolicyModel, mode: ScoringMode, ranks: Ranks, *, is_half: bool
) -> ScoringMode:
    """Return the same mode, or one sequence after the other from now on; collective.

    Raises ConfigError for a model that cannot be trained.
    """
    sequences = _sequences(policy, is_short=ranks.device.type == "cpu")
    with torch.compiler.set_stance("force_eager"), _in_shares_afterwards(policy):
        _compute_gradient(policy, sequences)
        fault = _packing_fault(policy, sequences, ranks, is_half=is_half) if policy.is_packed else ""
    if not fault:
        return mode
    model: Any = policy.model
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return ScoringMode(model.config._attn_implementation, obstacle=fault)


def _compute_gradient(policy: PolicyModel, sequences: list[np.ndarray]) -> None:
    """Compute a gradient as a step does, so that what fails fails before the first rollout."""
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        return
    try:
        torch.cat(scores(policy, sequences)).sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model's own code may raise anything
        config: Any = policy.model.config
        shared = getattr(config.get_text_config(), "num_kv_shared_layers", 0)
        cause = ": layers that share keys cannot pass them on under FSDP" if shared else ""
        raise ConfigError(
            f"trainer=grpo cannot train models of type {config.model_type}{cause}: their gradient fails "
            f"({one_line(error)})"
        ) from error
    policy.zero_grad(set_to_none=True)


@torch.no_grad()
def _packing_fault(policy: PolicyModel, sequences: list[np.ndarray], ranks: Ranks, *, is_half: bool) -> str:
    """Name what is wrong with its scores of several sequences at once; empty if nothing is."""
    model: Any = policy.model
    found = scores(policy, sequences)
    with _attention(model, "eager"):
        expected = scores(policy, sequences)
    bound = TOLERANCE
    if is_half:
        bound = _LEAST * float(torch.cat(expected).std())
    if is_half and model._supports_sdpa:
        with _attention(model, "sdpa"):
            bound = max(bound, _TIMES_NOISE * _distance(scores(policy, sequences), expected, torch.median))
    size = _distance(found, expected, torch.median if is_half else torch.max)
    if not ranks.any_of_world(not size <= bound):
        return ""
    return f"on this device its log-probabilities at once are off by {size:.2g}"


def _distance(found: list[Tensor], expected: list[Tensor], of: Callable[[Tensor], Tensor]) -> float:
    """Return the maximum, or the largest median of a sequence: noise has outliers."""
    return max(float(of((a - b).abs())) for a, b in zip(found, expected, strict=True))


def _sequences(policy: PolicyModel, *, is_short: bool) -> list[np.ndarray]:
    config: Any = policy.model.config
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None) or 0
    longest = window + 24 if not is_short and window <= _LONGEST_WINDOW else 24
    generator = np.random.default_rng(0)
    return [generator.integers(0, text.vocab_size, length) for length in (longest, 17)]


@contextmanager
def _in_shares_afterwards(policy: PolicyModel) -> Iterator[None]:
    """Drop what a rank has gathered of others' weights: it would outlive a change of them."""
    try:
        yield
    finally:
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
