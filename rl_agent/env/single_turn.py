"""The base of single-turn environments with a verifier: one prompt, one response, one score."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from rl_agent.env.verifier import VerifierTimeout, close_pool, shared_pool
from rl_agent.errors import EnvironmentRefusal
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Observation, StepResult, Task


class SingleTurnEnvironment(ABC):
    """Asks the task's prompt and scores the first response, in a worker process if that takes a library.

    An empty action is not an answer and earns 0. A verification that takes longer than `verify_timeout_s`
    gives reward 0, because the response causes it. `workers` is the number of processes that all instances of
    a kind share.
    """

    is_cooperative = True
    kind: ClassVar[str]
    """Key of `verifier_worker.MAKERS`."""

    def __init__(self, *, verify_timeout_s: float = 5.0, workers: int = 1) -> None:
        self._verify_timeout_s = verify_timeout_s
        self._workers = workers
        self._task: Task | None = None

    @staticmethod
    @abstractmethod
    def check_task(task: Task) -> None:
        """Raises ValueError that says what the task lacks."""

    @abstractmethod
    def request(self, task: Task, response: str) -> dict[str, Any]:
        """Return what the worker needs to score `response`; called in a thread if that is long."""

    def plain_score(self, request: dict[str, Any]) -> float | None:
        """Score what can neither hang nor break; None: a worker scores it."""
        return None

    async def reset(self, task: Task, seed: int) -> Observation:
        try:
            self.check_task(task)
        except ValueError as error:
            raise EnvironmentRefusal(f"task {task.task_id}: {error}") from None
        self._task = task
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        assert self._task is not None
        task, self._task = self._task, None
        if not action.strip():  # some verifiers have points for any answer; this is none
            return StepResult(Observation("No answer."), done=True)
        request = await off_loop(len(action), self.request, task, action)
        reward = await off_loop(len(action), self.plain_score, request)
        if reward is not None:
            return StepResult(Observation(""), reward=reward, done=True)
        try:
            reward = await shared_pool(self.kind, self._workers).score(request, self._verify_timeout_s)
        except VerifierTimeout as error:
            return StepResult(Observation(f"Not verified: {error}."), done=True)
        return StepResult(Observation(""), reward=reward, done=True)

    async def close(self) -> None:
        self._task = None

    @classmethod
    async def close_shared(cls) -> None:
        """End the worker processes of this kind."""
        close_pool(cls.kind)
