"""Selects the settings of a run that a person looks for: those typed, those often set, those that differ."""

from collections.abc import Mapping
from typing import Any

from rl_agent.page.run_folder import value_at

MAX_DIFFERENCES = 200
COMMON = (
    *("model_config.base_model", "data_path", "seed", "trainer.kind"),
    *("env_config.train_tasks_rollout_size", "rollout.group_size", "env_config.test_tasks_rollout_size"),
    *("policy_config.temperature", "policy_config.max_new_tokens", "policy_config.system_prompt"),
    *("trainer.optimizer.learning_rate", "trainer.learning_rate", "trainer.mini_batches"),
    *(
        "trainer.loss.advantage",
        "trainer.loss.policy_loss",
        "trainer.loss.clip_low",
        "trainer.loss.clip_high",
    ),
    *("trainer.loss.kl_in", "trainer.loss.kl_coefficient", "trainer.batch.max_staleness"),
    *("trainer.placement", "trainer.lora.rank"),
)
"""Keys that people set, in the order in which they look for them."""
OF_A_FOLDER = ("log_path", "run_name")
"""Keys that differ between any two runs."""


def typed(plan: Mapping[str, Any]) -> list[str]:
    """Return the overrides as they were typed."""
    words = value_at(plan, "command", "overrides")
    return [str(word) for word in words] if isinstance(words, list) else []


def common(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the keys that people set, as far as the configuration has them."""
    settings = flat(plan.get("config"))
    return {key: settings[key] for key in COMMON if key in settings}


def differences(plans: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return each key in which the configurations differ, with its value in each run; `-`: it has none."""
    of_runs = [flat(plan.get("config")) for plan in plans.values()]
    keys = sorted({key for settings in of_runs for key in settings} - set(OF_A_FOLDER))
    rows = ((key, [settings.get(key, "-") for settings in of_runs]) for key in keys)
    return [(key, values) for key, values in rows if len(set(values)) > 1][:MAX_DIFFERENCES]


def flat(config: Any, prefix: str = "") -> dict[str, str]:
    """Return the values of nested settings by dotted keys; deeper than any configuration, as one text."""
    settings: dict[str, str] = {}
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            settings |= flat(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = "null" if value is None else str(value)
    return settings
