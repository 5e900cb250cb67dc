"""Scores mathematical problems against a reference answer in LaTeX, by math-verify.

The response may end in `\\boxed{…}`, in LaTeX between dollars or in a plain number, or contain
`<answer>…</answer>`. Equal values in different notations are equal.
"""

from typing import Any

from rl_agent.env.answer import final_answer, is_tagged
from rl_agent.env.single_turn import SingleTurnEnvironment
from rl_agent.types import Task


class MathEnvironment(SingleTurnEnvironment):
    """A problem whose answer is compared with `answer`."""

    kind = "math"

    @staticmethod
    def check_task(task: Task) -> None:
        if task.answer is None:
            raise ValueError("no answer; math compares with one")

    @staticmethod
    def request(task: Task, response: str) -> dict[str, Any]:
        return {
            "response": final_answer(response),
            "is_tagged": is_tagged(response),
            "answer": task.answer,
        }
