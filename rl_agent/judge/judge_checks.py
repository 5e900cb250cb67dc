"""Checks that a model judge has what it needs: keys, prompts, prices for its budget, an API that answers."""

from collections.abc import Collection, Mapping
from typing import Any

from rl_agent.config.plan import Command, Config
from rl_agent.config.sections.judge import JudgeConfig
from rl_agent.errors import ConfigError, JudgeOutage
from rl_agent.judge.judge import PURPOSES, ModelJudge, for_purpose, read_prompt
from rl_agent.judge.judge_budget import refusal, spent_usd
from rl_agent.judge.rubric import Purpose, check_criteria, criteria_of
from rl_agent.system.terminal import one_line
from rl_agent.types import Task

_FINAL = (400, 401, 403, 404, 422)
"""HTTP statuses of an API that refuses a question today and tomorrow."""


def check_judge(config: Config, command: Command, environ: Mapping[str, str]) -> None:
    if config.rollout.reward != "judge" or command.rl_phase == "update":
        return
    judge = config.openai_config
    for purpose in PURPOSES:
        variable = for_purpose(judge, purpose).openai_api_key_env_var
        if not environ.get(variable):
            raise ConfigError(
                f"rollout.reward=judge: the variable {variable} with the judge's API key is not set"
                " (any value works for a server that requires no key)"
            )
    for prompt in (judge.verdict_prompt, judge.pick_prompt):
        read_prompt(prompt)
    if judge.budget_usd is None:
        return
    for purpose in PURPOSES:
        settings = for_purpose(judge, purpose)
        if not (settings.price_per_million_prompt_tokens or settings.price_per_million_completion_tokens):
            raise ConfigError(
                f"openai_config.budget_usd={judge.budget_usd:g}: {settings.model} has no price to count by;"
                " set openai_config.price_per_million_prompt_tokens and price_per_million_completion_tokens"
            )
    if (spent := spent_usd(config.paths.judge_cache / "spent")) >= judge.budget_usd:
        raise refusal(spent, judge.budget_usd)


async def try_out(judge: ModelJudge, config: JudgeConfig, tasks: Collection[Task]) -> None:
    """Ask one tiny question for each of the settings by which these tasks are judged.

    Raises ConfigError where a refusal is final; what may pass is left to the episodes and their retries.
    """
    check_criteria(tasks)
    purposes = {criterion.purpose for task in tasks for criterion in criteria_of(task)}
    if config.max_images > 1 and config.pick.model_fields_set:
        purposes.add("pick")
    tried: list[JudgeConfig] = []
    for purpose in PURPOSES:
        settings = for_purpose(config, purpose)
        if purpose not in purposes or settings in tried:
            continue
        tried.append(settings)
        try:
            await judge.try_out(purpose)
        except JudgeOutage as error:
            if getattr(error.__cause__, "status_code", None) in _FINAL:
                raise _refused(config, purpose, error.__cause__) from error


def _refused(config: JudgeConfig, purpose: Purpose, error: Any) -> ConfigError:
    settings, own = for_purpose(config, purpose), getattr(config, purpose).model_dump(exclude_none=True)
    message = error.body.get("message") if isinstance(error.body, dict) else None
    reason = one_line(" ".join(str(message or error.body or error)[:500].split()))
    key = f"openai_config.{purpose}" if own else "openai_config"
    right = ""
    if "max_completion_tokens" in reason and settings.max_tokens_name == "max_tokens":
        right = f"; set {key}.max_tokens_name=max_completion_tokens"
    elif "temperature" in reason and settings.temperature is not None:
        left_out = f"leave out {key}.temperature and " if "temperature" in own else ""
        right = f"; {left_out}set openai_config.temperature=null"
    who = f"{settings.base_url} refuses what {settings.model} is asked"
    return ConfigError(f"{key}: {who} ({error.status_code}): {reason}{right}")
