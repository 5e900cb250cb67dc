"""Settings that a person gave and that change nothing as the others are: said before anything starts."""

from collections.abc import Collection, Sequence

from rl_agent.config.plan import Command, Config
from rl_agent.config.sections.grpo import GrpoConfig
from rl_agent.plan.context import inert_keys
from rl_agent.types import Task


def notes(config: Config, keys: Collection[str]) -> tuple[str, ...]:
    """A line for each key of `keys` that has no effect; what a file sets is the file's business."""
    reasons = inert_keys(config) | (_reasons(config.grpo) if config.is_streaming else {})
    lines = tuple(f"{key} changes nothing: {reasons[key]}" for key in sorted(keys) if key in reasons)
    return (*lines, *_of_judge(config, keys))


def of_tasks(config: Config, command: Command, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return one line where an environment was given for tasks without one, and there are no such tasks."""
    key, kinds = f"env_config.default_env={config.env_config.default_env}", {task.env for task in tasks}
    is_given = any(word.lstrip("+").startswith("env_config.default_env=") for word in command.overrides)
    if not is_given or not tasks or config.env_config.default_env in kinds:
        return ()
    return (f"{key} changes nothing: every task names its env, {', '.join(sorted(kinds))}",)


def _of_judge(config: Config, overrides: Collection[str]) -> tuple[str, ...]:
    """Return one line where a judge was described and none is asked."""
    judge = sorted(key for key in overrides if key.split(".")[0] in ("openai_config", "judge"))
    if not judge or config.rollout.reward == "judge":
        return ()
    changes = "changes" if len(judge) == 1 else "change"
    return (f"{', '.join(judge)} {changes} nothing: no judge is asked; set rollout.reward=judge",)


def _reasons(trainer: GrpoConfig) -> dict[str, str]:
    """Return why a key has no effect, for each that has none."""
    loss, causes = trainer.loss, dict[str, str]()
    if (unclipped := _why_nothing_is_clipped(trainer)) is not None:
        causes |= dict.fromkeys(("clip_low", "clip_high", "dual_clip"), unclipped)
    if loss.policy_loss == "sapo":
        causes |= dict.fromkeys(("clip_low", "clip_high"), "policy_loss=sapo has a gate in place of the clip")
    else:
        sapo_only = f"it belongs to policy_loss=sapo, and policy_loss is {loss.policy_loss}"
        causes |= dict.fromkeys(("sapo_temperature_positive", "sapo_temperature_negative"), sapo_only)
    if loss.policy_loss in ("sapo", "cispo"):
        causes["dual_clip"] = f"it bounds the losses of ppo and gspo, and policy_loss is {loss.policy_loss}"
    if loss.sequence_mask == "none":
        causes["sequence_mask_bound"] = "sequence_mask is none"
    if loss.correction != "mask":
        causes["correction_low"] = f"it belongs to correction=mask, and correction is {loss.correction}"
    if loss.correction == "none":
        causes["correction_high"] = "it belongs to correction=truncate and mask, and correction is none"
    if loss.kl_in == "none":
        causes |= dict.fromkeys(("kl_estimator", "kl_coefficient"), "kl_in is none")
    if loss.normalization != "dr_grpo":
        causes["constant_length"] = f"it belongs to normalization=dr_grpo, and that is {loss.normalization}"
    if loss.overlong != "penalty":
        belongs = f"it belongs to overlong=penalty, and overlong is {loss.overlong}"
        causes |= dict.fromkeys(("overlong_cache", "overlong_penalty"), belongs)
    reasons = {f"trainer.loss.{name}": reason for name, reason in causes.items()}
    reasons["model_config.template"] = "it belongs to trainer=llamafactory"
    if not loss.drop_uninformative:
        reasons["trainer.max_num_gen_batches"] = "no group is left out with loss.drop_uninformative=false"
    return reasons


def _why_nothing_is_clipped(trainer: GrpoConfig) -> str | None:
    """Return why no ratio leaves the interval; None where one may."""
    otherwise = (
        "trainer.loss.proximal=behaviour trainer.loss.correction=none clips against the engine's logprobs"
    )
    if trainer.loss.proximal == "current":
        return (
            "with trainer.loss.proximal=current the ratio is 1 at every step; proximal=iteration clips from"
            f" the second step of an iteration on, {otherwise}"
        )
    if trainer.loss.proximal == "iteration" and trainer.mini_batches == 1:
        return (
            "with trainer.mini_batches=1 an iteration makes one step, at which the ratio is 1; a second one"
            f" would be clipped, and {otherwise}"
        )
    return None
