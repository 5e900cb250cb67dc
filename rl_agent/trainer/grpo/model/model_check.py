"""Checks that a loaded model can be trained, and settles how its sequences are scored.

The model itself scores three short random sequences, on its device, sharded, in the precision of its layers:
one after the other with the attention that transformers writes out, and all at once. Where the two agree,
micro-batches are scored at once; else one sequence after the other, which is right for any causal model.
Where they also agree with the prefix of two of the sequences computed once, prefixes are shared. Half
precision is noisy; the difference of two attentions of transformers measures how much.

Windows beyond `_LONGEST_WINDOW`, and an engine that computes another model, are beyond this check: the first
step on the engine's own samples compares its logprobs with the trainer's (`step/first_step.py`).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rl_agent.errors import ConfigError, first_line
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel

_log = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference of a log-probability in fp32; less where logits are scaled down, as their errors are."""
_LONGEST_WINDOW = 512
"""A sequence of the check reaches beyond windows of up to so many tokens."""
_TIMES_NOISE, _LEAST = 4.0, 0.02
"""Bounds in half precision: in differences between attentions, and in standard deviations of the scores."""
_UNKNOWN_NOISE = 0.1
"""Bound in standard deviations for models with one attention; sequences that mix differ by about one."""


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The reasons why a model is not scored in the faster ways; empty where it is."""

    at_once: str
    sharing: str
    """The reason why a prefix is not computed once for all sequences that begin with it."""


def settle_scoring(policy: PolicyModel, ranks: Ranks, *, is_half: bool) -> Obstacles:
    """Score at once and share prefixes if that is right, else one sequence after the other. Collective.

    Raises ConfigError for a model that cannot be trained.
    """
    with torch.compiler.set_stance("force_eager"), _in_shares_afterwards(policy):
        obstacles = _Check(policy, ranks, is_half=is_half).obstacles()
        policy.shares_prefixes = not obstacles.sharing
        _compute_gradient(policy, _sequences(policy))
    return obstacles


def compile_ahead(policy: PolicyModel, *, is_chosen: bool) -> None:
    """Compile the layers now, while engines start: the first step would take the time. Collective.

    Raises ConfigError for layers that cannot be compiled; unless that was chosen, they stay as they are.
    """
    with _in_shares_afterwards(policy):
        sequences = _sequences(policy)
        try:
            with torch.no_grad():
                scores(policy, sequences, shares=policy.shares_prefixes)
            _compute_gradient(policy, sequences)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler may raise anything
            cause = first_line(getattr(error, "inner_exception", error))
            if is_chosen:
                raise ConfigError(
                    f"trainer.parallel.compile_layers: the layers cannot be compiled ({cause})"
                ) from error
            _log.warning("the layers are not compiled: %s", cause)
            policy.zero_grad(set_to_none=True)  # a backward pass that broke off leaves some gradients
            for layer in policy.layers:
                layer._compiled_call_impl = None


class _Check:
    """The scores of the sequences, one after the other, and how far they may be missed."""

    def __init__(self, policy: PolicyModel, ranks: Ranks, *, is_half: bool) -> None:
        self._policy = policy
        model: Any = policy.model
        self._model = model
        self._kind = f"models of type {model.config.model_type}"
        self._ranks = ranks
        self._of = torch.median if is_half else torch.max
        self._sequences = _sequences(policy)
        self._expected = self._scores_alone("eager", self._sequences)
        self._bound = self._bound_of(float(torch.cat(self._expected).std()), is_half=is_half)

    def obstacles(self) -> Obstacles:
        """Settle the attention."""
        self._check_causality()
        apart = "its sequences are scored one after the other"
        if not self._policy.is_packed:
            return Obstacles("its code takes no packed sequences", apart)
        obstacle = self._fault_at_once(shares=False)
        if not obstacle:
            is_always = self._policy.packs_up_to is None
            return Obstacles("", self._fault_at_once(shares=True) if is_always else apart)
        is_right = self._model._supports_sdpa and not self._differ(
            self._scores_alone("sdpa", self._sequences), self._expected
        )
        attention.use(self._model, "sdpa" if is_right else "eager")
        return Obstacles(obstacle, apart)

    def _check_causality(self) -> None:
        """Refuse a model in which the last token changes what is computed of those before it."""
        first, *others = self._sequences
        changed = np.append(first[:-1], (first[-1] + 1) % self._policy.vocabulary)
        changed_scores = self._scores_alone("eager", [changed, *others])
        if self._differ([changed_scores[0][:-1]], [self._expected[0][:-1]]):
            raise ConfigError(
                f"{self._kind} let a token see those behind it, so they are no policy that samples one token"
                " after the other; where the configuration has is_decoder, true makes it one"
            )

    @torch.no_grad()
    def _fault_at_once(self, *, shares: bool) -> str:
        try:
            packed_scores = scores(self._policy, self._sequences, shares=shares)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a model's own code may raise anything
            return f"its code takes no packed sequences ({first_line(error)})"
        if not self._differ(packed_scores, self._expected):
            return ""
        size = _distance(packed_scores, self._expected, self._of)
        return f"together they are scored otherwise than each alone (log-probabilities are off by {size:.2g})"

    @torch.no_grad()
    def _scores_alone(self, implementation: str, sequences: list[np.ndarray]) -> list[Tensor]:
        with _attention(self._model, implementation):
            try:
                return scores(self._policy, sequences)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a model's own code may raise anything
                raise ConfigError(
                    f"{self._kind} cannot be scored by trainer=grpo, not even one sequence at a time: its"
                    f" code fails ({first_line(error)})"
                ) from error

    def _bound_of(self, spread: float, *, is_half: bool) -> float:
        if not is_half:
            return TOLERANCE * min(1.0, spread)
        if not self._model._supports_sdpa:
            return _UNKNOWN_NOISE * spread
        noise = _distance(self._scores_alone("sdpa", self._sequences), self._expected, torch.median)
        return max(_LEAST * spread, _TIMES_NOISE * noise)

    def _differ(self, actual: list[Tensor], expected: list[Tensor]) -> bool:
        """Return whether any rank finds a difference, or a number that is not finite."""
        return self._ranks.any_of_world(not _distance(actual, expected, self._of) <= self._bound)


def _compute_gradient(policy: PolicyModel, sequences: list[np.ndarray]) -> None:
    """Compute a gradient as a step does, so that what fails fails before the first rollout."""
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        return
    try:
        torch.cat(scores(policy, sequences, shares=policy.shares_prefixes)).sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model's own code may raise anything
        config: Any = policy.model.config
        shared = getattr(config.get_text_config(), "num_kv_shared_layers", 0)
        cause = ": layers that share keys cannot pass them on under FSDP" if shared else ""
        raise ConfigError(
            f"trainer=grpo cannot train models of type {config.model_type}{cause}: their gradient fails "
            f"({first_line(error)})"
        ) from error
    policy.zero_grad(set_to_none=True)


def scores(policy: PolicyModel, sequences: list[np.ndarray], *, shares: bool = False) -> list[Tensor]:
    """Compute the log-probabilities of every token but the first, sequence by sequence."""
    rows = []
    for tokens in sequences:
        is_response = np.arange(len(tokens)) > 0
        segment = Segment(tokens.astype(np.int32), is_response, np.zeros(len(tokens), np.float32))
        rows.append(Row(segment, 0.0, len(tokens) - 1, 0))
    logprobs, _ = policy(pack(rows, next(policy.parameters()).device, shares=shares))
    return list(logprobs.split([len(tokens) - 1 for tokens in sequences]))


def _distance(actual: list[Tensor], expected: list[Tensor], of: Callable[[Tensor], Tensor]) -> float:
    """Return the maximum, or the largest median of a sequence: noise has outliers."""
    return max(float(of((a - b).abs())) for a, b in zip(actual, expected, strict=True))


def _sequences(policy: PolicyModel) -> list[np.ndarray]:
    config: Any = policy.model.config
    text = config.get_text_config()
    windows = (getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size"))
    reach = max(window for window in (0, *windows) if window <= _LONGEST_WINDOW)
    generator = np.random.default_rng(0)
    long, short, rest = (generator.integers(2, text.vocab_size, n) for n in (reach + 24, 17, 9))
    return [long, short, np.concatenate([long[: reach + 12], rest])]


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
    """Let a model compute by another attention for a while; one that packs no sequences keeps its own."""
    before = model.config._attn_implementation
    if before == attention.NAME:
        attention.use(model, name)
    try:
        yield
    finally:
        if before == attention.NAME:
            attention.use(model, before)
