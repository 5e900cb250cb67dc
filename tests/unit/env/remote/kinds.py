"""Environments for tests of worker processes: what a user may write, good and bad."""

# ruff: noqa: ASYNC220, ASYNC251 - bad ones block

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from rl_agent.errors import EnvironmentRefusal, EnvironmentUnavailable
from rl_agent.types import Observation, StepResult, Task

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Obeying:
    """Does what its actions say; its observation names its process."""

    def __init__(self, *, greeting: str = "") -> None:
        self._greeting = greeting
        self._steps = 0
        self._leaked: list[bytes] = []

    @staticmethod
    def check_task(task: Task) -> None:
        if task.prompt == "bad":
            raise ValueError("the prompt is bad; write a good one")

    async def reset(self, task: Task, seed: int) -> Observation:
        self._steps = 0
        if task.extra.get("refuses"):
            raise EnvironmentRefusal("this task has no page")
        if task.extra.get("unavailable"):
            raise EnvironmentUnavailable("there is no browser on this machine")
        return Observation(f"{self._greeting}{task.prompt} {seed} {os.getpid()}")

    async def step(self, action: str) -> StepResult:
        self._steps += 1
        verb, _, word = action.partition(" ")
        match verb:
            case "block":
                time.sleep(float(word))
            case "wait":
                await asyncio.sleep(float(word))
            case "raise":
                raise ValueError(word)
            case "exit":
                os._exit(int(word))
            case "interrupt":
                raise KeyboardInterrupt
            case "leave":
                sys.exit(3)
            case "leak":
                self._leaked.append(b"x" * (int(word) * 2**20))
            case "child":
                return StepResult(Observation(str(subprocess.Popen(SLEEPER).pid)))
            case "detached":
                return StepResult(Observation(str(subprocess.Popen(SLEEPER, start_new_session=True).pid)))
            case "picture":
                path = Path(os.environ["TMPDIR"]) / f"{self._steps}.png"
                path.write_bytes(word.encode() * 100)
                return StepResult(Observation("a picture", (str(path),)))
            case "long":
                return StepResult(Observation("y" * int(word)))
            case "lie":
                return {"reward": 1}  # type: ignore[return-value]
            case "done":
                return StepResult(Observation(""), reward=1.0, done=True)
        return StepResult(Observation(f"{self._steps} {action}"), reward=0.5, changed=False, invalid=True)

    async def close(self) -> None:
        self._steps = 0


class NeverClosing(Obeying):
    async def close(self) -> None:
        await asyncio.Event().wait()


class Demanding(Obeying):
    """Takes a setting without which it cannot be made."""

    def __init__(self, colour: str) -> None:
        super().__init__(greeting=f"{colour} ")
