"""The section `openai_config`: the models that judge episodes."""

from rl_agent.sections import Count, NotNegative, Positive, Seconds, Section


class JudgeOverride(Section):
    """One purpose of the judge may set these keys differently from the rest of `openai_config`."""

    model: str | None = None
    base_url: str | None = None
    openai_api_key_env_var: str | None = None
    temperature: NotNegative | None = None
    max_tokens: Positive | None = None
    max_images: Count | None = None


class JudgeConfig(Section):
    model: str
    base_url: str
    openai_api_key_env_var: str
    temperature: NotNegative
    max_tokens: Positive
    timeout_s: Seconds
    max_retries: Count
    max_concurrency: Positive
    max_images: Count
    use_cache: bool
    price_per_million_prompt_tokens: NotNegative
    price_per_million_completion_tokens: NotNegative
    evaluation: JudgeOverride
