"""Compares the engine's log-probabilities with the trainer's, once, on samples of the very same weights.

It finds what no check before a rollout can: RoPE by other angles, a window that one of the two does not know,
weights that were loaded wrongly. Without it the importance correction hides the difference, and the policy
learns from ratios between two different models.
"""

from collections.abc import Iterable, Mapping

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.samples import Group, Versions

MOST_EXACT, MOST_HALF = 0.05, 0.1
"""Largest mean |difference| of a token, in fp32 and in half precision, where 0.01 to 0.05 are usual."""


def is_on_policy(groups: Iterable[Group], version: int) -> bool:
    """Return whether every token was sampled with the weights of `version`."""
    return all(sample.versions == Versions(version, version) for group in groups for sample in group.trained)


def compare_with_engine(numbers: Mapping[str, float], version: int, *, is_half: bool) -> str:
    """Return a warning about the first step's `logprob_difference`, empty if engine and trainer agree.

    Raises ConfigError where they differ in fp32, in which there is no noise to blame.
    """
    difference = numbers.get("logprob_difference", 0.0)
    if difference <= (MOST_HALF if is_half else MOST_EXACT):
        return ""
    warning = (
        f"the engine's log-probabilities differ from the trainer's by {difference:.2g} per token on average,"
        f" over {numbers['response_tokens']:,.0f} tokens of weight version {version} on both sides, so they"
        " compute different models; compare engine.max_model_len with the model's original context, and"
        " engine.dtype and engine.extra_args with what the trainer loads"
    )
    if not is_half:
        raise ConfigError(warning)
    return warning
