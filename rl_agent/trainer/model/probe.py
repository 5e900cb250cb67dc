"""Measures on a small copy of a model how it may be scored, before the model itself is loaded.

Random sequences are scored by the trainer's code, several at once, and one at a time by transformers alone
(its written-out attention, the whole of the logits), in fp32. Where both agree, the model is scored so. Where
sequences agree only by themselves, it is scored one sequence after the other. Else it is refused. The copy
goes through the trainer's way of making a model, too, and has all of its mechanisms (`miniature.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from rl_agent.errors import ConfigError
from rl_agent.trainer.data.batch import Row, pack
from rl_agent.trainer.data.samples import Segment
from rl_agent.trainer.model import attention
from rl_agent.trainer.model.buffers import computed_buffers, forget_lengths, set_buffers
from rl_agent.trainer.model.miniature import CONTEXT, VOCABULARY, WINDOW, miniature, short_context
from rl_agent.trainer.model.parallel import Ranks
from rl_agent.trainer.model.policy import PolicyModel, build_model

TOLERANCE = 1e-3
"""Largest difference of a log-probability."""
_LENGTHS = (CONTEXT + 8, 3, 2 * WINDOW + 3, CONTEXT + 11, WINDOW // 2)
_NOISE = 0.1
"""Added to weights: those of a fresh model hardly tell tokens apart."""


@dataclass(frozen=True, slots=True)
class ScoringMode:
    """The mode of scoring the sequences of a micro-batch: at once, or one after the other."""

    implementation: str | None = attention.NAME
    """Of attention; None: the one that transformers prefers. Only `attention.NAME` takes several at once."""
    packs_up_to: int | None = None
    """Tokens of the longest sequence among several at once; None: any."""
    obstacle: str = ""
    """The reason why sequences are not packed; empty if they are."""
    sees_the_future: bool = False
    """Whether a token's logits depend on those behind it, so that it is no policy at all."""
    fault: str = ""
    """The reason why even single sequences are scored wrongly; empty if they are not."""

    def notice(self, kind: str) -> str:
        """Describe the mode for the log; empty if there is nothing to say."""
        if not self.obstacle:
            return ""
        which = "" if self.packs_up_to is None else f" where one has more than {self.packs_up_to} tokens"
        return (
            f"models of type {kind}: sequences are scored one after the other{which}, slower than all at "
            f"once: {self.obstacle}"
        )


def agreed_scoring_mode(config: PretrainedConfig, ranks: Ranks) -> ScoringMode:
    """Agree on what rank 0 finds; collective. Raises ConfigError for a model that cannot be scored."""
    found = asdict(find_scoring_mode(config, ranks.device)) if ranks.rank == 0 else None
    content = ranks.bytes_of_first(None if found is None else json.dumps(found).encode())
    assert content is not None
    mode = ScoringMode(**json.loads(content))
    kind = f"models of type {config.model_type}"
    if mode.sees_the_future:
        raise ConfigError(
            f"{kind} let a token see those behind it, so they are no policy that samples one token after the "
            "other; where the configuration has is_decoder, true makes it one"
        )
    if mode.fault:
        raise ConfigError(
            f"{kind} cannot be scored by trainer=grpo, not even one sequence at a time: {mode.fault}"
        )
    return mode


def find_scoring_mode(config: PretrainedConfig, device: torch.device) -> ScoringMode:
    """Find the fastest mode of scoring that is right."""
    try:
        probe = MiniatureProbe(miniature(config), device)
    except Exception as error:  # a model's own code may raise anything for sizes that it does not know
        return ScoringMode(None, obstacle=f"no small copy can be made to compare with ({one_line(error)})")
    if probe.sees_the_future():
        return ScoringMode(sees_the_future=True)
    try:
        return _fastest(probe, short_context(config))
    except ConfigError:
        return ScoringMode()  # the model itself is refused in the same words, on every rank


def _fastest(probe: "MiniatureProbe", context: int | None) -> ScoringMode:
    """Find the mode for a model whose angles change beyond `context` tokens; None: they do not."""
    obstacle = probe.fault(attention.NAME)
    if not obstacle:
        return ScoringMode()
    if context is not None and not probe.fault(attention.NAME, packs_up_to=CONTEXT):
        return ScoringMode(packs_up_to=context, obstacle=obstacle)
    for implementation in (None, "eager"):
        if not (fault := probe.fault(implementation)):
            return ScoringMode(implementation, obstacle=obstacle)
    return ScoringMode(fault=fault)


class MiniatureProbe:
    """A small model, and the scores that transformers alone gives random sequences."""

    def __init__(self, config: PretrainedConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._reference = _random_model(config).to(device)
        generator = np.random.default_rng(0)
        self._vocabulary = min(VOCABULARY, int(config.get_text_config().vocab_size))
        self._sequences = [generator.integers(2, self._vocabulary, length) for length in _LENGTHS]
        self._expected = [self._plain(tokens) for tokens in self._sequences]
        spread = float(torch.cat(self._expected).std())
        if not np.isfinite(spread):
            raise ValueError("transformers gives it no finite log-probabilities")
        self._tolerance = TOLERANCE * min(1.0, spread)  # where logits are scaled down, so are their errors

    def sees_the_future(self) -> bool:
        """Return whether a token's logits depend on tokens behind it."""
        tokens = self._sequences[0]
        other = np.append(tokens[:-1], (tokens[-1] + 1) % self._vocabulary)
        return self._differ([self._plain(other)[:-1]], [self._expected[0][:-1]])

    @torch.no_grad()
    def fault(self, implementation: str | None, *, packs_up_to: int | None = None) -> str:
        """Name what is wrong with scores by this attention; empty if nothing is."""
        try:
            policy = self._policy(implementation, packs_up_to)
            found = scores(policy, self._sequences)
            short = [index for index, tokens in enumerate(self._sequences) if len(tokens) <= CONTEXT]
            found += scores(policy, [self._sequences[index] for index in short])
        except ConfigError:
            raise
        except Exception as error:  # a model's own code may raise anything
            what = "takes no packed sequences" if implementation == attention.NAME else "fails"
            return f"its code {what} ({one_line(error)})"
        expected = self._expected + [self._expected[index] for index in short]
        if not self._differ(found, expected):
            return ""
        cause = self._cause(policy) if policy.is_packed else "logits are not those of transformers"
        return f"{cause} (log-probabilities are off by up to {_distance(found, expected):.2g})"

    def _cause(self, policy: PolicyModel) -> str:
        """Name why several sequences at once are scored otherwise than each alone."""
        if short_context(self._config) is not None:
            return "its angles depend on the longest sequence, as those of dynamic and long RoPE do"
        alone = []
        for tokens in self._sequences:
            forget_lengths(policy.model)
            alone += scores(policy, [tokens])
        if self._differ(
            [part[: WINDOW - 1] for part in alone], [part[: WINDOW - 1] for part in self._expected]
        ):
            return "its attention is of a kind that is not known here"
        if self._differ(alone, self._expected):
            return "it attends within a window or a chunk that it does not tell its attention of"
        first, *others = self._sequences
        together = scores(policy, self._sequences)
        if self._differ(together[1:], scores(policy, [first[::-1].copy(), *others])[1:]):
            return "one sequence reaches into the next, as it does in recurrent layers and convolutions"
        if self._differ(together[:1], self._expected[:1]):
            return "what it computes of a sequence depends on the lengths of others"
        return "it counts positions on from one sequence to the next"

    def _differ(self, found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        return not _distance(found, expected) <= self._tolerance  # also where a number is not finite

    @torch.no_grad()
    def _plain(self, tokens: np.ndarray) -> Tensor:
        forget_lengths(self._reference)
        input_ids = torch.as_tensor(tokens, device=self._device)[None]
        logits = self._reference(input_ids=input_ids, use_cache=False).logits[0].float()
        return logits.log_softmax(-1)[:-1].gather(1, input_ids[0, 1:, None])[:, 0]

    def _policy(self, implementation: str | None, packs_up_to: int | None) -> PolicyModel:
        """Make a model with the same weights as the trainer does."""
        with torch.device("meta"):
            model = build_model(self._config, activation_checkpointing=0.0, implementation=implementation)
        buffers = computed_buffers(model, self._device)
        model.to_empty(device=self._device)
        model.tie_weights()  # type: ignore[operator]
        set_buffers(model, buffers)
        model.load_state_dict(self._reference.state_dict())
        return PolicyModel(model, temperature=1.0, chunk_tokens=CONTEXT, packs_up_to=packs_up_to)


def _random_model(config: PretrainedConfig) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data += _NOISE * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def scores(policy: PolicyModel, sequences: Sequence[np.ndarray]) -> list[Tensor]:
    """Compute the log-probabilities of every token but the first, sequence by sequence."""
    rows = []
    for tokens in sequences:
        is_response = np.arange(len(tokens)) > 0
        segment = Segment(tokens.astype(np.int32), is_response, np.zeros(len(tokens), np.float32))
        rows.append(Row(segment, 0.0, len(tokens) - 1, 0))
    logprobs, _ = policy(pack(rows, next(policy.parameters()).device))
    return list(logprobs.split([len(tokens) - 1 for tokens in sequences]))


def _distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return float((torch.cat(list(found)) - torch.cat(list(expected))).abs().max())


def one_line(error: Exception) -> str:
    """Describe an error of another library in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
