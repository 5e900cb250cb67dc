"""Scores one answer to one question with reasoning_gym's own verifier.

A task carries the fields of a reasoning_gym entry: `prompt` (its question), `answer`, `dataset` (the name it
is registered under) and `entry_metadata`. The library is imported and run in a worker process only.
"""

from typing import Any

from rl_agent.env.answer import final_answer
from rl_agent.env.single_turn import SingleTurnEnvironment
from rl_agent.types import Task


class ReasoningGymEnvironment(SingleTurnEnvironment):
    """A question of reasoning_gym, scored by the dataset that it comes from."""

    kind = "reasoning_gym"

    @staticmethod
    def check_task(task: Task) -> None:
        if task.answer is None:
            raise ValueError("no answer; reasoning_gym scores against an answer")
        if not isinstance(task.extra.get("dataset"), str):
            raise ValueError("no dataset; write the name of the reasoning_gym dataset it comes from")
        if not isinstance(task.extra.get("entry_metadata", {}), dict):
            raise ValueError("entry_metadata is not an object; copy the entry's metadata")

    def request(self, task: Task, response: str) -> dict[str, Any]:
        return {
            "response": final_answer(response),
            "prompt": task.prompt,
            "answer": task.answer,
            "dataset": task.extra["dataset"],
            "metadata": task.extra.get("entry_metadata", {}),
        }
