"""Judges episodes with a model behind any OpenAI-compatible API.

    trajectory ─► question ─► cache? ─► at most `max_concurrency` calls ─► cache ─► read ─► Verdict
                                              │ retried by the openai client: timeouts, 408, 409, 429, 5xx
                                              └► still no answer: JudgeOutage, which is no reward at all

An episode that the judge did not clearly approve has reward 0 (`judge_prompt`).
"""

import asyncio
import base64
import logging
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rl_agent.errors import ConfigError, JudgeOutage
from rl_agent.judge_config import JudgeConfig
from rl_agent.off_loop import off_loop
from rl_agent.reward.judge_cache import JudgeAnswer, JudgeCache
from rl_agent.reward.judge_prompt import ImagePlace, Reading, messages_for, read_verdict, shown_images
from rl_agent.reward.verdict import Verdict
from rl_agent.types import Trajectory, writable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class JudgeUsage:
    """The number and cost of the verdicts of this process."""

    verdicts: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


def for_evaluation(config: JudgeConfig) -> JudgeConfig:
    """Return the configuration with the values that `evaluation` overrides."""
    return config.model_copy(update=config.evaluation.model_dump(exclude_none=True))


class ModelJudge:
    """Requests verdicts; used as `async with ModelJudge(config.openai_config, paths.judge_cache)`."""

    def __init__(self, config: JudgeConfig, cache_dir: Path) -> None:
        self.usage = JudgeUsage()
        self._config = for_evaluation(config)
        self._cache = JudgeCache(cache_dir) if config.use_cache else None
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._client: Any = None

    async def __aenter__(self) -> Self:
        self._client = await asyncio.to_thread(self._make_client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def __call__(self, trajectory: Trajectory) -> Verdict:
        """Judge an episode. Raises JudgeOutage if there is no answer after all retries."""
        config = self._config
        urls = await self._image_urls(trajectory)
        question = {
            "base_url": config.base_url,
            "model": config.model,
            "messages": await off_loop(_size(trajectory), messages_for, trajectory, urls),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        answer = await asyncio.to_thread(self._cache.get, question) if self._cache else None
        is_cached = answer is not None
        if answer is None:
            async with self._slots:
                answer = await self._ask(question)
            await self._remember(question, answer)
        reading = await off_loop(len(answer.content), read_verdict, answer.content, answer.finish_reason)
        return self._verdict(answer, reading, is_cached=is_cached)

    async def _image_urls(self, trajectory: Trajectory) -> dict[ImagePlace, str]:
        """Encode the images as data URLs. Raises JudgeOutage for a missing one, which proves no failure."""
        paths = shown_images(trajectory, self._config.max_images)
        try:
            return {place: await asyncio.to_thread(_data_url, Path(path)) for place, path in paths.items()}
        except OSError as error:
            raise JudgeOutage(f"the image {error.filename} cannot be read: {error.strerror}") from error

    def _verdict(self, answer: JudgeAnswer, reading: Reading, *, is_cached: bool) -> Verdict:
        config = self._config
        prompt_tokens = 0 if is_cached else answer.prompt_tokens
        completion_tokens = 0 if is_cached else answer.completion_tokens
        cost_usd = (
            prompt_tokens * config.price_per_million_prompt_tokens
            + completion_tokens * config.price_per_million_completion_tokens
        ) / 1e6
        self.usage.verdicts += 1
        self.usage.cached += is_cached
        self.usage.prompt_tokens += prompt_tokens
        self.usage.completion_tokens += completion_tokens
        self.usage.cost_usd += cost_usd
        return Verdict(
            reward=1.0 if reading.finding == "success" else 0.0,
            detail={
                "verdict": reading.finding,
                "reason": reading.reason,
                "judge_model": config.model,
                "is_cached": is_cached,
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "cost_usd": cost_usd,
            },
        )

    async def _ask(self, question: dict[str, Any]) -> JudgeAnswer:
        from openai import OpenAIError

        request = {name: asked for name, asked in question.items() if name != "base_url"}
        try:
            completion = await self._client.chat.completions.create(**request)
        except (OpenAIError, ValueError) as error:  # ValueError: an answer that is not JSON
            problem = writable(f"{type(error).__name__}: {error}")
            raise JudgeOutage(f"{self._config.base_url}: {problem}") from error
        try:
            choice, usage = completion.choices[0], completion.usage
            return JudgeAnswer(
                content=writable(choice.message.content or ""),
                finish_reason=choice.finish_reason,
                prompt_tokens=_count(usage.prompt_tokens) if usage else 0,
                completion_tokens=_count(usage.completion_tokens) if usage else 0,
            )
        except (AttributeError, IndexError, TypeError) as error:
            raise JudgeOutage(
                f"{self._config.base_url}: not a chat completion: {completion!r:.200}"
            ) from error

    async def _remember(self, question: dict[str, Any], answer: JudgeAnswer) -> None:
        if self._cache is None:
            return
        try:
            await asyncio.to_thread(self._cache.put, question, answer)
        except OSError as error:  # a full disk costs money, not the verdict
            log.warning("the judge's answer is not cached: %s", error)

    def _make_client(self) -> Any:
        from openai import AsyncOpenAI

        config = self._config
        return AsyncOpenAI(
            api_key=self._api_key(),
            base_url=config.base_url,
            timeout=config.timeout_s,
            max_retries=config.max_retries,
        )

    def _api_key(self) -> str:
        name = self._config.openai_api_key_env_var
        key = os.environ.get(name)
        if not key:
            raise ConfigError(f"rollout.reward=judge needs an API key: set the environment variable {name}")
        return key


def _size(trajectory: Trajectory) -> int:
    return sum(len(step.observation.text) + len(step.action) for step in trajectory.steps)


def _count(tokens: object) -> int:
    """Check a number of tokens that an API reports, because the client does not."""
    return tokens if isinstance(tokens, int) and 0 <= tokens < 2**53 else 0


def _data_url(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
