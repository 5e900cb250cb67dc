"""The lines that a person reads after each phase."""

from rl_agent.monitor.progress import LINE_CHARACTERS
from rl_agent.monitor.report import TimelineSpan
from rl_agent.monitor.summary import example_lines, iteration_line, phase_lines

ROWS = {
    1: {"test/success_rate": 0.522},
    2: {
        "test/weight_version": 1,
        "test/success_rate": 0.703,
        "train/success_rate": 0.513,
        "train/reward_mean": 0.514,
        "train/episodes": 2048,
        "update/loss": 0.082,
    },
}
SPANS = [
    TimelineSpan("rollout", 2, 100.0, 110.0),
    TimelineSpan("update", 2, 500.0, 531.0),  # after a resume
    TimelineSpan("training", 2, 505.0, 530.0),
    TimelineSpan("rollout", 1, 0.0, 90.0),
]


def test_an_iteration_is_one_line_with_its_gain_and_version():
    assert iteration_line(ROWS, 2, SPANS) == (
        "iteration 2  test v1 0.703 (+0.181)  train 0.513  reward 0.514  2,048 episodes  loss 0.082  41 s"
    )


def test_graded_rewards_lead_the_line_where_none_succeeds():
    rows = {
        n: {f"{split}/{name}": value for split in ("test", "train") for name, value in numbers.items()}
        for n, numbers in {
            1: {"success_rate": 0.0, "reward_mean": 0.25},
            2: {"success_rate": 0.0, "reward_mean": 0.375},
        }.items()
    }
    assert iteration_line(rows, 2, []) == "iteration 2  test reward 0.375 (+0.125)  train reward 0.375  0.0 s"


def test_an_iteration_that_has_begun_shows_what_is_known():
    assert iteration_line({1: {"test/success_rate": 0.5}}, 1, []) == "iteration 1  test 0.500  0.0 s"
    assert iteration_line({}, 1, []) == ""


def test_two_responses_are_a_line_each_with_the_expected_answer():
    prompt = "State the final answer to the following arithmetic problem: 28 - 49 ="
    shown = {"reward": 1.0, "is_success": True, "response": "-21", "expected": "-21", "prompt": prompt}
    failed = shown | {"reward": 0.0, "is_success": False, "response": "so\n" * 50 + "it is 12"}
    first, second = example_lines({"test/examples": [shown, failed]})
    assert first.startswith('  rewarded 1     "-21"  expected "-21"  to "…') and first.endswith('28 - 49 ="')
    assert second.startswith('  failed   0     "… so so') and 'it is 12"  expected "-21"' in second
    assert max(len(first), len(second)) <= LINE_CHARACTERS


def test_responses_are_shown_after_an_evaluation_alone():
    example = {"reward": 1.0, "is_success": True, "response": "2", "expected": "2", "prompt": "1 + 1 ="}
    rows = {1: {"test/success_rate": 0.5, "test/examples": [example]}}
    assert [len(phase_lines(rows, 1, phase, [])) for phase in ("evaluate", "update")] == [2, 1]
    assert phase_lines({}, 1, "rollout", []) == []
