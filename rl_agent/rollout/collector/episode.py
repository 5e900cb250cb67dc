"""One episode of a task, from reset to a recorded outcome.

    place ─► reset ─► respond ─► parse ─► step ─► … ─► done │ truncated │ last step allowed      COMPLETED
      ▲        │         │                  │
      │        └─────────┴──────────────────┴─► RolloutError FAILED · timeout TIMED_OUT · abandon() ABANDONED
      └─ the environment failed, not the agent: from the start, up to `attempts` times

Whatever ends it, the finished steps of the last attempt are kept and the environment is closed before `run`
returns. An exception raised inside an environment, whatever its type, is an EnvironmentFailure of this
episode. Only our own bugs, a dead engine (RetryLater) and the cancellation of the job get out.
"""

import asyncio
import copy
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from rl_agent.chat.tool_calls import Toolbox
from rl_agent.chat.tool_formats import Schema
from rl_agent.env.agent.session import AskingEnvironment, asks
from rl_agent.env.protocol import Environment
from rl_agent.env.remote.instance import RemoteInstance
from rl_agent.env.values import (
    checked_observation,
    checked_result,
    described,
    environment_failure,
    recordable,
)
from rl_agent.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentLost,
    EnvironmentRefusal,
    EnvironmentUnavailable,
    PromptTooLong,
    RolloutError,
)
from rl_agent.rollout.collector.agent_chats import AgentChats
from rl_agent.rollout.collector.conversation import Conversation, Turn
from rl_agent.rollout.collector.failures import COMMONEST, FailureReasons, TracebackLog, is_worth_a_line
from rl_agent.rollout.collector.policy import EpisodeDraws, Policy
from rl_agent.rollout.trajectories.images import keep_images
from rl_agent.types import (
    EpisodeSpec,
    Failure,
    LostAttempt,
    Observation,
    Split,
    Status,
    Step,
    StepResult,
    Task,
    Trajectory,
)

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""The time for an environment to close; then its place is given to the next episode all the same."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """The settings and parts that the episodes of a rollout share."""

    split: Split
    iteration: int
    model: str
    policy: Policy
    create_environment: Callable[[str, int], Environment]
    """Takes a kind, and how many workers may have died of earlier attempts at the episode."""
    step_timeout_s: float
    episode_timeout_s: float
    images: Path | None = None
    """The folder of observations' images; None leaves them where they are."""
    rank: int = 0
    tools_of: Callable[[Task], Awaitable[Sequence[Schema]]] | None = None
    """The functions that a task's agent may call, where actions are tool calls."""
    scorer_of: Callable[[str], str] = lambda kind: ""
    """The kind that scores episodes of one that asks the model itself; empty if none does."""
    agent_log: Callable[[str], object] = lambda text: None
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of named rewards; one without counts as it is."""
    attempts: int = 1
    """The number of attempts at an episode whose environment fails."""
    tracebacks: TracebackLog | None = None
    """The log of what environments raised."""
    lost_attempts: FailureReasons = field(default_factory=FailureReasons)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


class _EnvironmentTimeout(TimeoutError):
    """An environment took longer for a call than it may."""


_ATTEMPT_SEEDS = 2**40
"""The distance between the seeds of two attempts: the same responses may meet the same fate."""


class Episode:
    """One episode while it runs; used once."""

    def __init__(self, spec: EpisodeSpec, setup: EpisodeSetup) -> None:
        self.spec = spec
        self.started_at = setup.wall_clock()
        self.steps: list[Step] = []
        """The steps of the attempt that runs."""
        self._rewards: dict[str, float] = {}
        """Sums of the named rewards of these steps."""
        self._lost: list[LostAttempt] = []
        self._crashes = 0
        self._setup = setup
        self._started = setup.clock()
        self._environment: Environment | None = None
        self._draws: EpisodeDraws | None = None
        self._limit: asyncio.Timeout | None = None
        self._is_abandoned = False
        self._is_truncated = False
        self._last_observation = ""

    def elapsed_s(self) -> float:
        return self._setup.clock() - self._started

    def abandon(self) -> None:
        """End it now, or not start it; `run` returns what there is. Does nothing once it has ended."""
        self._is_abandoned = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(0.0)

    async def run(self) -> Trajectory:
        """Run to the end; failures of the episode are returned.

        Raises RetryLater if the engine is gone, EnvironmentUnavailable if no such episode can work here.
        """
        if self._is_abandoned:
            reason = "not started when the rollout's grace period ended"
            return self._trajectory(Status.ABANDONED, Failure("TimeoutError", reason))
        while True:
            began = self._setup.clock()
            status, failure, error = await self._attempt()
            if failure is None or not self._may_help(error):
                return self._trajectory(status, failure)
            self._report(failure)
            self._lost.append(LostAttempt(failure, len(self.steps), self._setup.clock() - began))
            self._crashes += isinstance(error, EnvironmentLost) and error.is_suspect
            self.steps, self._rewards = [], {}
            self._last_observation = ""

    def _report(self, failure: Failure) -> None:
        """Log a lost attempt; what all episodes lose theirs by is not repeated for each of them."""
        count = self._setup.lost_attempts.add(failure)
        if is_worth_a_line(count):
            so_far = f" ({count:,} attempts so far)" if count > COMMONEST else ""
            log.info("%s: attempt %d: %s%s", self.spec.key, len(self._lost) + 1, failure.message, so_far)

    async def _attempt(self) -> tuple[Status, Failure | None, Exception | None]:
        """Return how one attempt ended, and what ended it."""
        try:
            async with asyncio.timeout(self._setup.episode_timeout_s) as limit:
                self._limit = limit
                await self._play()
        except TimeoutError as error:
            return *self._timed_out(str(error), is_whole_episode=limit.expired()), error
        except RolloutError as error:
            failure = Failure(type(error).__name__, recordable(str(error)))
            if type(error) is EnvironmentFailure and self._setup.tracebacks is not None:
                self._setup.tracebacks.add(str(self.spec.key), failure, error)
            return Status.FAILED, failure, error
        finally:
            self._limit = None
            if self._draws is not None:
                await self._draws.end()
            self._draws = None
            await self._close()
        return Status.COMPLETED, None, None

    def _may_help(self, error: Exception | None) -> bool:
        """Return whether the episode is to be begun again: it was the environment, and not for good."""
        if self._is_abandoned or len(self._lost) + 1 >= self._setup.attempts:
            return False
        if isinstance(error, EnvironmentRefusal):
            return False
        return isinstance(error, EnvironmentFailure | _EnvironmentTimeout)

    async def _play(self) -> None:
        spec, key = self.spec, str(self.spec.key)
        environment = self._environment = self._create(spec.task.env)
        if isinstance(environment, RemoteInstance):
            await environment.place()
        task = self._task_copy()
        lost = len(self._lost)
        draws = self._draws = EpisodeDraws(
            self._setup.policy,
            seed=spec.seed + lost * _ATTEMPT_SEEDS,
            name=f"{key}:again{lost}" if lost else key,
            task_id=spec.key.task_id,
            is_single_turn=spec.max_steps == 1,
        )
        if asks(environment):
            await self._listen(environment, draws, task)
            return
        shown = await self._ask(environment.reset(task, spec.seed), "reset")
        observation = checked_observation(shown, "reset")
        conversation = Conversation(draws, await self._toolbox(task))
        while True:
            observation = await self._keep_images(observation)
            try:
                turn = await conversation.respond(observation)
            except PromptTooLong:
                if not self.steps:  # no response was possible at all: not the agent's doing
                    raise
                self._is_truncated = True
                return
            start = self._setup.clock()
            # Kept also if the environment fails at it: this response is what it failed at.
            step = Step(
                observation=observation,
                prompt_token_ids=turn.prompt_token_ids,
                generation=turn.generation,
                action=turn.action,
                reward=0.0,
                changed=False,
                context_reset=turn.context_reset,
                seen=turn.seen,
            )
            self.steps.append(step)
            result = await self._act(environment, turn)
            self.steps[-1] = replace(
                step,
                reward=self._weighted(result),
                changed=result.changed,
                env_s=self._setup.clock() - start,
                invalid=result.invalid,
            )
            self._last_observation = result.observation.text
            if result.done or result.truncated or len(self.steps) == spec.max_steps:
                self._is_truncated = not result.done or turn.generation.finish_reason == "length"
                return
            conversation.note(changed=result.changed, invalid=result.invalid)
            observation = result.observation

    def _task_copy(self) -> Task:
        """Copy the task: what an environment does to it would be in its siblings' task, and in the record."""
        return replace(self.spec.task, extra=copy.deepcopy(self.spec.task.extra))

    async def _listen(self, environment: AskingEnvironment, draws: EpisodeDraws, task: Task) -> None:
        """Let an environment ask the model until it ends, and score what it made of the answers."""
        setup, spec = self._setup, self.spec
        chats = AgentChats(
            draws,
            model=setup.model,
            max_steps=spec.max_steps,
            idle_s=setup.step_timeout_s,
            images=setup.images,
            log=lambda text: setup.agent_log(f"{spec.key}: {text}"),
        )
        try:
            asking = environment.run(task, spec.seed, chats)
            result = checked_result(await chats.until_end(self._ask(asking, "program", chats.watch)))
        finally:
            self.steps = chats.steps
        if not self.steps:
            raise EnvironmentFailure("the agent's program ended without a request to the model")
        scorer = setup.scorer_of(spec.task.env)
        if scorer and not (result.truncated or result.invalid):
            result = await self._scored(scorer, result.observation.text)
        last = replace(self.steps[-1], reward=self._weighted(result), invalid=result.invalid)
        self.steps[-1] = last
        self._last_observation = result.observation.text
        self._is_truncated = result.truncated or chats.is_cut

    async def _scored(self, kind: str, output: str) -> StepResult:
        """Return what an environment of one turn says of a program's output."""
        await self._close()
        environment = self._environment = self._create(kind)
        if isinstance(environment, RemoteInstance):
            await environment.place()
        await self._ask(environment.reset(self._task_copy(), self.spec.seed), "reset")
        return checked_result(await self._ask(environment.step(output), "step"))

    def _weighted(self, result: StepResult) -> float:
        """Return the reward of a step, and count its named ones."""
        for name, value in result.rewards.items():
            self._rewards[name] = self._rewards.get(name, 0.0) + value
        weights = self._setup.reward_weights
        named = (weights.get(name, 1.0) * value for name, value in result.rewards.items())
        return math.fsum((result.reward, *named))

    async def _toolbox(self, task: Task) -> Toolbox | None:
        written_as, tools_of = self._setup.policy.tool_format, self._setup.tools_of
        if written_as is None or tools_of is None:
            return None
        return Toolbox(await self._ask(tools_of(task), "tools"), written_as)

    async def _act(self, environment: Environment, turn: Turn) -> StepResult:
        """Carry out what a response does; a call that cannot be is answered here."""
        parsed = turn.parsed
        if parsed.problem:
            return StepResult(Observation(parsed.problem), changed=False, invalid=True)
        result = checked_result(await self._ask(environment.step(turn.action), "step"))
        if not parsed.remark:
            return result
        text = f"{result.observation.text}\n{parsed.remark}".lstrip("\n")
        return replace(result, observation=replace(result.observation, text=text))

    async def _keep_images(self, observation: Observation) -> Observation:
        images = self._setup.images
        if images is None or not observation.images:
            return observation
        return await asyncio.to_thread(keep_images, observation, images)

    def _create(self, kind: str) -> Environment:
        try:
            return self._setup.create_environment(kind, self._crashes)
        except EnvironmentUnavailable:
            raise
        except ConfigError as error:
            raise EnvironmentRefusal(f"could not be made: {described(error)}") from error
        except Exception as error:  # the constructor is the environment's own code
            raise environment_failure("could not be made", error) from error

    async def _ask(
        self, call: Awaitable[T], name: str, watch: Callable[[asyncio.Timeout], None] = lambda limit: None
    ) -> T:
        """Wait for an environment, at most `step_timeout_s`; `watch` may postpone that deadline."""
        try:
            async with asyncio.timeout(self._setup.step_timeout_s) as limit:
                watch(limit)
                return await call
        except TimeoutError as error:
            if limit.expired():
                raise _EnvironmentTimeout(
                    f"the environment's {name} took longer than {self._setup.step_timeout_s:g} s,"
                    " rollout.step_timeout_s"
                ) from None
            raise environment_failure(f"{name} failed", error) from error
        except (EnvironmentFailure, EnvironmentUnavailable, GeneratorExit, KeyboardInterrupt):
            raise
        except ConfigError as error:
            raise EnvironmentRefusal(f"{name} failed: {described(error)}") from error
        except (
            BaseException
        ) as error:  # SystemExit and its own CancelledError too: they end this episode only
            job = asyncio.current_task()
            if job is not None and job.cancelling():
                raise asyncio.CancelledError from error
            raise environment_failure(f"{name} failed", error) from error

    async def _close(self) -> None:
        if self._environment is None:
            return
        environment, self._environment = self._environment, None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await environment.close()
        except Exception as error:  # the episode is over; only its environment is the poorer
            log.warning("%s: the environment did not close: %s", self.spec.key, described(error))

    def _timed_out(self, message: str, *, is_whole_episode: bool) -> tuple[Status, Failure]:
        if is_whole_episode and self._is_abandoned:
            reason = "still running when the rollout's grace period ended"
            return Status.ABANDONED, Failure("TimeoutError", reason)
        if is_whole_episode:
            message = f"the episode took longer than {self._setup.episode_timeout_s:g} s"
        return Status.TIMED_OUT, Failure("TimeoutError", message)

    def _trajectory(self, status: Status, failure: Failure | None) -> Trajectory:
        setup, spec, steps = self._setup, self.spec, tuple(self.steps)
        now = setup.policy.engine.weight_version
        return Trajectory(
            key=spec.key,
            task=spec.task,
            split=setup.split,
            iteration=setup.iteration,
            status=status,
            steps=steps,
            reward=math.fsum(step.reward for step in steps) if status is Status.COMPLETED else None,
            system_prompt=setup.policy.system_prompt or "",
            model=setup.model,
            weight_version_min=min((step.generation.weight_version_min for step in steps), default=now),
            weight_version_max=max((step.generation.weight_version_max for step in steps), default=now),
            seed=spec.seed,
            started_at=self.started_at,
            duration_s=self.elapsed_s(),
            truncated=self._is_truncated,
            failure=failure,
            rewards=dict(self._rewards),
            rank=setup.rank,
            lost_attempts=tuple(self._lost),
            last_observation=self._last_observation,
        )
