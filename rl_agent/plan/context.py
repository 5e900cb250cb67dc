"""Checks that engine and loss go with what the context policy keeps of an episode."""

from rl_agent.config.plan import Command, Config
from rl_agent.errors import ConfigError

_IMAGES = "image"


def check_context(config: Config, command: Command) -> None:
    """Refuse a context that the engine cannot take. Raises ConfigError."""
    if command.rl_phase == "update":
        return
    context, engine = config.context, config.engine
    room = context.room_for_response(engine.max_model_len, config.policy_config.max_new_tokens)
    summary = context.summary_tokens if context.kind == "summary" else 0
    if room + summary >= engine.max_model_len:
        needed = f"context.response_tokens={room}" + (
            f" and context.summary_tokens={summary}" if summary else ""
        )
        raise ConfigError(
            f"{needed} leave no room in engine.max_model_len={engine.max_model_len} for a prompt; lower it"
        )
    if context.kind == "everything":
        return
    most = engine.limit_mm_per_prompt.get(_IMAGES)
    if most and (context.max_images is None or context.max_images > most):
        shown = "null" if context.max_images is None else context.max_images
        raise ConfigError(
            f"context.max_images={shown}: engine.limit_mm_per_prompt.image={most} refuses a prompt with more;"
            f" set context.max_images={most} or raise the limit"
        )


def inert_keys(config: Config) -> dict[str, str]:
    """Return the keys of the group that have no effect, and why."""
    if config.context.kind == "everything":
        return {}
    if config.engine.limit_mm_per_prompt.get(_IMAGES) == 0:
        return {"context.max_images": "engine.limit_mm_per_prompt.image=0 takes no images"}
    return {}


def notes_on_loss(config: Config) -> tuple[str, ...]:
    """Return a line for each setting by which a loss depends on where the policy cuts an episode."""
    is_cut = max(config.env_config.train_difficulty_max_steps.values(), default=1) > 1
    if not config.is_streaming or config.context.kind == "everything" or not is_cut:
        return ()
    loss = config.grpo.loss
    kinds = {"policy_loss": loss.policy_loss == "gspo", "sequence_mask": loss.sequence_mask != "none"}
    return tuple(
        f"trainer.loss.{name}={getattr(loss, name)} judges each context that is sent anew by itself, so what"
        f" an episode of several teaches depends on where context={config.context.kind} cuts it"
        for name, depends in kinds.items()
        if depends
    )
