"""Environments that do not look at what the model says."""

import os

from rl_agent.types import Observation, StepResult, Task


class ThreeTurns:
    """A conversation of a few turns."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._turn = 0
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        self._turn += 1
        return StepResult(Observation(f"Turn {self._turn}: go on."), reward=0.5, done=self._turn == 3)

    async def close(self) -> None:
        pass


class OftenEqual:
    """Attempts at a task with an even number have equal rewards; at others the seed says which."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._reward = float(seed % 2) if int(task.task_id.rpartition("-")[2]) % 2 else 1.0
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=self._reward, done=True)

    async def close(self) -> None:
        pass


class Counting:
    """Numbers from 1 on, each to be answered with the next one."""

    LENGTH = 7
    _WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")

    @classmethod
    def texts(cls) -> list[str]:
        return [cls._asked(number) for number in range(cls.LENGTH)] + [*cls._WORDS]

    @classmethod
    def right_answer(cls, question: str) -> str:
        """Return what is to be said after an observation, or a text that ends with one."""
        number = max(cls._WORDS.index(word) for word in cls._WORDS if f"I say {word}." in question)
        return cls._WORDS[number + 1]

    @classmethod
    def _asked(cls, number: int) -> str:
        return f"I say {cls._WORDS[number]}. What comes next?"

    async def reset(self, task: Task, seed: int) -> Observation:
        self._number = 0
        return Observation(f"{task.prompt}\n{self._asked(0)}")

    async def step(self, action: str) -> StepResult:
        is_right = action == self._WORDS[self._number + 1]
        self._number += 1
        done = self._number == self.LENGTH
        return StepResult(
            Observation("" if done else self._asked(self._number)), is_right / self.LENGTH, done=done
        )

    async def close(self) -> None:
        pass


class NamesItsProcess:
    """The observation is the id of the process that the environment lives in."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(str(os.getpid()))

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(""), reward=1.0, done=True)

    async def close(self) -> None:
        pass
