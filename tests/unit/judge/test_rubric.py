import pytest

from rl_agent.errors import ConfigError
from rl_agent.judge.rubric import OF_THE_ANSWER, OF_THE_WHOLE, check_criteria, criteria_of
from rl_agent.types import Task


def task(answer=None, **extra):
    return Task("t", "Buy a lamp.", "web", "easy", answer, extra)


def criteria(answer=None, **extra):
    return [
        (criterion.text, criterion.weight, criterion.purpose)
        for criterion in criteria_of(task(answer, **extra))
    ]


@pytest.mark.parametrize("field", ["rubrics", "evaluator_reference"])
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("it is bought", [("it is bought", 1)]),
        (
            ["it is bought", {"description": "it is red", "weight": 2}],
            [("it is bought", 1), ("it is red", 2)],
        ),
        ([{"id": 1, "criterion": "a"}, {"rubric": "b"}, {"fact": "c"}], [("a", 1), ("b", 1), ("c", 1)]),
        (
            [{"id": 1, "description": "lamps", "facts": ["red", {"fact": "big"}], "weight": 3}],
            [("red", 3), ("big", 3)],
        ),
        ({"criteria": ["a", "b"]}, [("a", 1), ("b", 1)]),
    ],
)
def test_criteria_are_read_as_tasks_write_them(field, written, wanted):
    assert criteria(**{field: written}) == [(text, weight, "criterion") for text, weight in wanted]


def test_a_reference_answer_is_a_criterion_and_without_any_the_whole_is():
    assert criteria("42", rubrics="it is bought")[1:] == [(OF_THE_ANSWER, 1, "evaluation")]
    assert criteria() == [(OF_THE_WHOLE, 1, "evaluation")]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"rubrics": ["a"], "evaluator_reference": "b"}, "both given"),
        ({"rubrics": [{"weight": 1}]}, r"rubrics\[0\] has none of criterion, description"),
        ({"rubrics": [["a"]]}, r"rubrics\[0\] is a list in a list"),
        ({"rubrics": [7]}, r"rubrics\[0\] is int"),
        ({"rubrics": [{"criterion": "a", "weight": 0}]}, "weight is 0; use a number above 0"),
        ({"rubrics": [{"criterion": "a", "weight": 1e308}]}, r"weight is 1e\+308; .* at most 1e\+09"),
        ({"rubrics": [{"criterion": "a", "weight": 10**400}]}, "weight is 1000"),
        ({"rubrics": [{"criterion": "a", "weight": float("inf")}]}, "use a number above 0"),
        ({"rubrics": ["a"] * 51}, "51 criteria; 50 at most"),
        ({"rubrics": [{"facts": [{"facts": ["a"]}]}]}, "fact 0 is neither a text"),
    ],
)
def test_criteria_that_cannot_be_judged_are_refused_before_a_run(extra, problem):
    with pytest.raises(ConfigError, match=f"task t: .*{problem}"):
        check_criteria([task(**extra)])
