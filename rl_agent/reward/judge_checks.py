"""Checks that a model judge has what it needs: keys, prompts, prices for its budget."""

from collections.abc import Mapping

from rl_agent.config import Command, Config
from rl_agent.errors import ConfigError
from rl_agent.reward.judge import PURPOSES, for_purpose, read_prompt
from rl_agent.reward.judge_budget import refusal, spent_usd


def check_judge(config: Config, command: Command, environ: Mapping[str, str]) -> None:
    if config.rollout.reward != "judge" or command.rl_phase == "update":
        return
    judge = config.openai_config
    for purpose in PURPOSES:
        variable = for_purpose(judge, purpose).openai_api_key_env_var
        if not environ.get(variable):
            raise ConfigError(
                f"rollout.reward=judge: the variable {variable} with the judge's API key is not set"
                " (any word will do for a server that wants no key)"
            )
    for prompt in (judge.verdict_prompt, judge.pick_prompt):
        read_prompt(prompt)
    if judge.budget_usd is None:
        return
    for purpose in PURPOSES:
        asked = for_purpose(judge, purpose)
        if not (asked.price_per_million_prompt_tokens or asked.price_per_million_completion_tokens):
            raise ConfigError(
                f"openai_config.budget_usd={judge.budget_usd:g}: {asked.model} has no price to count by; set"
                " openai_config.price_per_million_prompt_tokens and price_per_million_completion_tokens"
            )
    if (spent := spent_usd(config.paths.judge_cache / "spent")) >= judge.budget_usd:
        raise refusal(spent, judge.budget_usd)
