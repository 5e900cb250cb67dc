"""Judges episodes with models behind any OpenAI-compatible API, criterion by criterion.

    trajectory ─► criteria ─► pick (which images matter, if there are more than `max_images`)
                                └► a question a criterion ─► cache? ─► budget ─► `max_concurrency` calls
                                     │ retried by the openai client: timeouts, 408, 409, 429, 5xx
                                     │ asked again here: an answer that cannot be read
                                     └► still nothing: JudgeOutage, which is not a reward at all

An episode has the reward 1 if it meets all criteria; with `rubric_reward=weighted` the share of the weights
that it meets. Pick, criteria and evaluation (the reference answer, the task as a whole) may have models of
their own.
"""

import asyncio
import base64
import logging
import mimetypes
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from rl_agent.config.sections.judge import JudgeConfig
from rl_agent.errors import ConfigError, JudgeOutage, deliberate
from rl_agent.judge import judge_prompt
from rl_agent.judge.judge_budget import JudgeBudget
from rl_agent.judge.judge_cache import JudgeAnswer, JudgeCache
from rl_agent.judge.judge_prompt import CriterionResult, ImagePlace, UnreadableAnswer
from rl_agent.judge.rubric import Criterion, Purpose, criteria_of
from rl_agent.judge.verdict import Verdict
from rl_agent.paths import CONFIG_DIR
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Trajectory, writable

log = logging.getLogger(__name__)

PURPOSES: tuple[Purpose, ...] = ("pick", "criterion", "evaluation")
ATTEMPTS = 3
"""Times that a question is asked whose answers cannot be read."""
PICK_BATCH = 8
"""Images that one question about them shows."""

_LONGEST_PAUSE_S = 8.0
"""The longest pause between two tries of the openai client."""

T = TypeVar("T")


@dataclass(slots=True)
class JudgeUsage:
    """The number and cost of verdicts: of a process, or of one episode."""

    verdicts: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, prompt_tokens: int, completion_tokens: int, cost_usd: float) -> None:
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cost_usd += cost_usd


def for_purpose(config: JudgeConfig, purpose: Purpose) -> JudgeConfig:
    """Return the configuration with the values that a purpose overrides."""
    return config.model_copy(update=getattr(config, purpose).model_dump(exclude_none=True))


def read_prompt(path: Path) -> str:
    """Read a prompt of `configs/judge`, or of a person's own. Raises ConfigError."""
    path = CONFIG_DIR / "judge" / path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"openai_config: the prompt {path} cannot be read: {error}") from error
    if judge_prompt.FENCE not in text:
        raise ConfigError(
            f"openai_config: the prompt {path} lacks {judge_prompt.FENCE}, its evidence's bounds"
        )
    return text


class ModelJudge:
    """Requests verdicts; used as `async with ModelJudge(config.openai_config, paths.judge_cache)`."""

    def __init__(self, config: JudgeConfig, cache_dir: Path) -> None:
        self.usage = JudgeUsage()
        self._config = config
        self._of = {purpose: for_purpose(config, purpose) for purpose in PURPOSES}
        self._cache = JudgeCache(cache_dir)
        self._budget = JudgeBudget(config.budget_usd, cache_dir / "spent")
        self._verdict_prompt = read_prompt(config.verdict_prompt)
        self._pick_prompt = read_prompt(config.pick_prompt)
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._clients: dict[Purpose, Any] = {}

    async def __aenter__(self) -> Self:
        for purpose, settings in self._of.items():
            self._clients[purpose] = await asyncio.to_thread(_make_client, settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    async def __call__(self, trajectory: Trajectory) -> Verdict:
        """Judge an episode.

        Raises JudgeOutage if there is no readable answer after all retries, ConfigError if the budget is
        spent.
        """
        usage = JudgeUsage()
        try:
            criteria = criteria_of(trajectory.task)
        except ValueError as error:
            raise JudgeOutage(f"task {trajectory.task.task_id} cannot be judged: {error}") from None
        shown = await self._pick(trajectory, criteria, usage)
        try:
            async with asyncio.TaskGroup() as jobs:
                answers = [
                    jobs.create_task(self._judge(trajectory, criterion, shown, usage))
                    for criterion in criteria
                ]
        except BaseExceptionGroup as group:
            raise deliberate(group) from None
        return self._verdict(trajectory, criteria, [answer.result() for answer in answers], shown, usage)

    async def try_out(self, purpose: Purpose) -> None:
        """Ask one tiny question with a purpose's settings, once. Raises JudgeOutage or ConfigError."""
        settings = self._of[purpose]
        question = _question(settings, purpose, judge_prompt.TRIAL, judge_prompt.VERDICT_SCHEMA)
        await asyncio.to_thread(self._budget.check)
        answer = await self._ask(purpose, question, max_retries=0)
        await self._pay(settings, answer, JudgeUsage())

    async def _judge(
        self, trajectory: Trajectory, criterion: Criterion, shown: Sequence[ImagePlace], usage: JudgeUsage
    ) -> CriterionResult:
        urls = await self._urls(trajectory, shown)
        messages = await off_loop(
            _size(trajectory),
            judge_prompt.verdict_messages,
            self._verdict_prompt,
            trajectory,
            criterion,
            urls,
        )
        schema = judge_prompt.VERDICT_SCHEMA
        return await self._answer(criterion.purpose, messages, schema, judge_prompt.read_verdict, usage)

    async def _pick(
        self, trajectory: Trajectory, criteria: Sequence[Criterion], usage: JudgeUsage
    ) -> tuple[ImagePlace, ...]:
        """Return the images by which an episode is judged, in order; the last one is always among them."""
        places, limit = tuple(judge_prompt.images_of(trajectory)), self._config.max_images
        if len(places) <= limit or limit <= 1:
            return places[max(len(places) - limit, 0) :]
        picked: list[ImagePlace] = []
        for begin in range(0, len(places) - 1, PICK_BATCH):
            batch = dict(enumerate(places[begin : min(begin + PICK_BATCH, len(places) - 1)], begin + 1))
            urls = await self._urls(trajectory, tuple(batch.values()))
            messages = await off_loop(
                _size(trajectory), judge_prompt.pick_messages, self._pick_prompt, trajectory, criteria, urls
            )
            read = partial(judge_prompt.read_picks, allowed=frozenset(batch))
            numbers = await self._answer("pick", messages, judge_prompt.PICK_SCHEMA, read, usage)
            picked += [batch[number] for number in numbers]
        return (*sorted(sorted(picked)[-(limit - 1) :]), places[-1])

    async def _urls(self, trajectory: Trajectory, shown: Sequence[ImagePlace]) -> dict[ImagePlace, str]:
        """Encode images as data URLs. Raises JudgeOutage for a missing one, which proves no failure."""
        paths = judge_prompt.images_of(trajectory)
        try:
            return {place: await asyncio.to_thread(_data_url, Path(paths[place])) for place in shown}
        except OSError as error:
            raise JudgeOutage(f"the image {error.filename} cannot be read: {error.strerror}") from error

    def _verdict(
        self,
        trajectory: Trajectory,
        criteria: Sequence[Criterion],
        results: Sequence[CriterionResult],
        shown: Sequence[ImagePlace],
        usage: JudgeUsage,
    ) -> Verdict:
        self.usage.verdicts += 1
        self.usage.cached += usage.verdicts == usage.cached
        passes = all(result.passes for result in results)
        weight = sum(criterion.weight for criterion in criteria)
        met = sum(
            criterion.weight for criterion, result in zip(criteria, results, strict=True) if result.passes
        )
        first = next((result for result in results if not result.passes), results[-1])
        models = dict.fromkeys(self._of[criterion.purpose].model for criterion in criteria)
        names = judge_prompt.names_of(judge_prompt.images_of(trajectory))
        return Verdict(
            reward=float(passes) if self._config.rubric_reward == "all_pass" else met / weight,
            detail={
                "verdict": "success" if passes else "failure",
                "reason": first.reason,
                "criteria": [
                    {
                        "criterion": criterion.text,
                        "weight": criterion.weight,
                        "verdict": "pass" if result.passes else "fail",
                        "reason": result.reason,
                        "judge_model": self._of[criterion.purpose].model,
                    }
                    for criterion, result in zip(criteria, results, strict=True)
                ],
                "images": [names[place] for place in shown],
                "judge_model": ", ".join(models),
                "is_cached": usage.verdicts == usage.cached,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cost_usd": usage.cost_usd,
            },
        )

    async def _answer(
        self,
        purpose: Purpose,
        messages: Sequence[dict[str, Any]],
        schema: Mapping[str, Any],
        read: Callable[[str, str | None], T],
        usage: JudgeUsage,
    ) -> T:
        """Return what the judge answers. Raises JudgeOutage, and ConfigError if the budget is spent."""
        settings = self._of[purpose]
        question = _question(settings, purpose, messages, schema)
        usage.verdicts += 1
        answer = await asyncio.to_thread(self._cache.get, question)
        if answer is not None:
            try:
                result = await off_loop(len(answer.content), read, answer.content, answer.finish_reason)
            except UnreadableAnswer:
                pass  # written by an older version, or damaged: asked again
            else:
                usage.cached += 1
                return result
        problem = ""
        for _ in range(ATTEMPTS):
            async with self._slots:
                await asyncio.to_thread(self._budget.check)
                answer = await self._ask(purpose, question, settings.max_retries)
            await self._pay(settings, answer, usage)
            try:
                result = await off_loop(len(answer.content), read, answer.content, answer.finish_reason)
            except UnreadableAnswer as error:
                problem = str(error)
                continue
            await self._remember(question, answer)
            return result
        who = f"{settings.base_url}: {settings.model}"
        raise JudgeOutage(f"{who} gave no {purpose} that can be read: {problem}")

    async def _pay(self, settings: JudgeConfig, answer: JudgeAnswer, usage: JudgeUsage) -> None:
        cost_usd = (
            answer.prompt_tokens * settings.price_per_million_prompt_tokens
            + answer.completion_tokens * settings.price_per_million_completion_tokens
        ) / 1e6
        for counted in (usage, self.usage):
            counted.add(answer.prompt_tokens, answer.completion_tokens, cost_usd)
        await asyncio.to_thread(self._budget.add, cost_usd)

    async def _ask(self, purpose: Purpose, question: Mapping[str, Any], max_retries: int) -> JudgeAnswer:
        from openai import OpenAIError

        base_url = question["base_url"]
        request = {name: value for name, value in question.items() if name != "base_url"}
        request["messages"] = judge_prompt.fenced(request["messages"], secrets.token_hex(16))
        client = self._clients[purpose].with_options(max_retries=max_retries)
        limit_s = (max_retries + 1) * (self._of[purpose].timeout_s + _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(limit_s):  # the client's own is from one byte to the next
                completion = await client.chat.completions.create(**request)
        except (OpenAIError, ValueError) as error:  # ValueError: the answer is not JSON
            message = writable(f"{type(error).__name__}: {error}")
            problem = " ".join(message.split())
            raise JudgeOutage(f"{base_url}: {problem}") from error
        except TimeoutError as error:
            raise JudgeOutage(f"{base_url}: no whole answer within {limit_s:g} s") from error
        try:
            choice, usage = completion.choices[0], completion.usage
            if usage is None and self._config.budget_usd is not None:
                raise ConfigError(
                    f"openai_config.budget_usd: {base_url} does not say how many tokens an answer took"
                    " (usage), so no budget can be kept; use a server that does, or budget_usd=null"
                )
            return JudgeAnswer(
                content=writable(choice.message.content or ""),
                finish_reason=choice.finish_reason,
                prompt_tokens=(usage.prompt_tokens or 0) if usage else 0,
                completion_tokens=(usage.completion_tokens or 0) if usage else 0,
            )
        except (AttributeError, IndexError, TypeError) as error:
            raise JudgeOutage(f"{base_url}: not a chat completion: {completion!r:.200}") from error

    async def _remember(self, question: dict[str, Any], answer: JudgeAnswer) -> None:
        try:
            await asyncio.to_thread(self._cache.put, question, answer)
        except OSError as error:  # a full disk costs money, not the verdict
            log.warning("the judge's answer is not cached: %s", error)


def _question(
    settings: JudgeConfig, purpose: Purpose, messages: Sequence[dict[str, Any]], schema: Mapping[str, Any]
) -> dict[str, Any]:
    question: dict[str, Any] = {
        "base_url": settings.base_url,
        "model": settings.model,
        "messages": list(messages),
        settings.max_tokens_name: settings.max_tokens,
    }
    if settings.temperature is not None:
        question["temperature"] = settings.temperature
    if settings.structured_output:
        form = {"name": purpose, "strict": True, "schema": dict(schema)}
        question["response_format"] = {"type": "json_schema", "json_schema": form}
    return question


def _make_client(config: JudgeConfig) -> Any:
    from openai import AsyncOpenAI

    name = config.openai_api_key_env_var
    key = os.environ.get(name)
    if not key:
        raise ConfigError(f"rollout.reward=judge needs an API key: set the environment variable {name}")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request
    return AsyncOpenAI(
        api_key=key,
        base_url=config.base_url,
        timeout=config.timeout_s,
        max_retries=config.max_retries,
    )


def _size(trajectory: Trajectory) -> int:
    return sum(len(step.observation.text) + len(step.action) for step in trajectory.steps)


def _data_url(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
