"""Two responses of an evaluation, and how many are one and the same."""

from dataclasses import replace

import pytest

from rl_agent.rollout.collector.examples import KEPT_CHARACTERS, Examples
from rl_agent.types import Status
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


def episode(index, response, *, reward=1.0, answer=None, seed=None):
    trajectory = make_trajectory(index, reward=reward)
    task = replace(trajectory.task, answer=str(index) if answer is None else answer)
    return replace(trajectory, task=task, steps=(make_step(response),), seed=index if seed is None else seed)


def test_a_rewarded_and_a_failed_response_are_kept_whichever_ends_first():
    episodes = [
        episode(3, "first to end"),
        episode(1, "x" * 1000 + " 12"),
        episode(2, "wrong", reward=0.0, answer="7"),
        replace(episode(0, "broken"), status=Status.FAILED, reward=None),
    ]
    for ordered in (episodes, episodes[::-1]):
        examples = Examples()
        for ended in ordered:
            examples.add(ended, is_success=ended.reward == 1.0)
        rewarded, failed = examples.record()
        assert rewarded["response"].endswith(" 12") and len(rewarded["response"]) == KEPT_CHARACTERS
        assert (rewarded["is_success"], rewarded["reward"]) == (True, 1.0)
        assert (failed["response"], failed["expected"], failed["is_success"]) == ("wrong", "7", False)


@pytest.mark.parametrize(
    ("responses", "answers", "share"),
    [
        (["The answer.", "the  ANSWER", "the answer!", "other"], "1234", 0.5),  # 3 of 4, and 1 of 4 is right
        (["yes", "yes", "yes", "no"], "yyyn", 0.0),  # as the tasks want it
        (["1", "2", "3", "4"], "1234", 0.0),
        ([], "", 0.0),
    ],
)
def test_responses_are_alike_where_the_expected_answers_are_not(responses, answers, share):
    examples = Examples()
    for index, (response, answer) in enumerate(zip(responses, answers, strict=True)):
        examples.add(episode(index, response, answer=answer), is_success=True)
    assert examples.same_response_share() == share
