"""Scores mathematical problems against a reference answer; `docs/reference/answers.md` has the rules.

The answer is in the last `<answer>…</answer>`, in the last `\\boxed{…}`, or what the text states. A plain
number or words are wanted where the reference is that; everything else is compared by math-verify, to which
equal values in different notations are equal.
"""

from typing import Any

from rl_agent.env.answer import final_answer, is_tagged, last_box
from rl_agent.env.plain_answers import plain_score
from rl_agent.env.single_turn import SingleTurnEnvironment
from rl_agent.types import Task


class MathEnvironment(SingleTurnEnvironment):
    """A problem whose answer is compared with `answer`.

    `expressions` has an expression count that is worth the expected number, `12 + 30` for 42.
    """

    kind = "math"

    def __init__(self, *, expressions: bool = False, verify_timeout_s: float = 5.0, workers: int = 1) -> None:
        super().__init__(verify_timeout_s=verify_timeout_s, workers=workers)
        self._expressions = expressions

    @staticmethod
    def check_task(task: Task) -> None:
        if task.answer is None:
            raise ValueError("no answer; math compares with an answer")

    def request(self, task: Task, response: str) -> dict[str, Any]:
        answer, reference = final_answer(response), task.answer or ""
        box = last_box(answer)
        return {
            "response": answer if box is None else box,
            "is_boxed": box is not None,
            "is_tagged": is_tagged(response),
            "answer": reference if (boxed := last_box(reference)) is None else boxed,
            "expressions": self._expressions,
        }

    def plain_score(self, request: dict[str, Any]) -> float | None:
        return plain_score(request["response"], request)
