"""The section `openai_config`: the models that judge episodes."""

from pathlib import Path
from typing import Literal

from rl_agent.config.sections.base import Above0, Count, NotNegative, Positive, Seconds, Section


class JudgeOverride(Section):
    """One purpose of the judge may set these keys differently from the rest of `openai_config`."""

    model: str | None = None
    base_url: str | None = None
    openai_api_key_env_var: str | None = None
    temperature: NotNegative | None = None
    max_tokens: Positive | None = None
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] | None = None
    structured_output: bool | None = None
    price_per_million_prompt_tokens: NotNegative | None = None
    price_per_million_completion_tokens: NotNegative | None = None


class JudgeConfig(Section):
    model: str
    base_url: str
    openai_api_key_env_var: str
    temperature: NotNegative | None
    max_tokens: Positive
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"]
    timeout_s: Seconds
    max_retries: Count
    max_concurrency: Positive
    max_images: Count
    structured_output: bool
    rubric_reward: Literal["all_pass", "weighted"]
    verdict_prompt: Path
    pick_prompt: Path
    budget_usd: Above0 | None
    price_per_million_prompt_tokens: NotNegative
    price_per_million_completion_tokens: NotNegative
    pick: JudgeOverride
    criterion: JudgeOverride
    evaluation: JudgeOverride
