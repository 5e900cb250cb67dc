"""The collector tells a pool how long a response will be."""

from dataclasses import replace

from rl_agent.engine.wire import Sampling, completion_request
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.lengths import MOST_REMEMBERED, ResponseLengths
from rl_agent.types import Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_setup, make_spec


def test_the_mean_of_a_task_and_turn_is_expected_and_none_if_unseen():
    lengths = ResponseLengths()
    for tokens in (100, 200, 300):
        lengths.add("sums", 0, tokens)
    lengths.add("sums", 1, 40)
    assert [lengths.expected("sums", turn) for turn in range(3)] == [200, 40, 0]
    assert lengths.expected("other", 0) == 0


def test_lengths_of_an_earlier_iteration_are_taken_over_and_count_less(tmp_path):
    lengths, path = ResponseLengths(), tmp_path / "lengths.json"
    for _ in range(100):
        lengths.add("sums", 0, 100)
    lengths.save(path)
    later = ResponseLengths.load(path)
    assert later.expected("sums", 0) == 100
    for _ in range(int(MOST_REMEMBERED)):
        later.add("sums", 0, 300)
    assert later.expected("sums", 0) == 200


def test_a_file_that_is_missing_or_damaged_is_not_missed(tmp_path):
    path = tmp_path / "lengths.json"
    for content in (None, "", "{", '{"sums": 3}'):
        if content is not None:
            path.write_text(content)
        lengths = ResponseLengths.load(path)
        assert lengths.expected("sums", 0) == 0


def test_only_where_it_is_known_a_request_says_it():
    sampling = Sampling(1.0, 1.0, -1, 0.0, 64, 7)
    assert b"expected_tokens" not in completion_request("model", [1], sampling, "r")
    assert b"group" not in completion_request("model", [1], sampling, "r")
    assert b"timeout_s" not in completion_request("model", [1], sampling, "r")
    known = replace(sampling, expected_tokens=33, group="task-7", timeout_s=600.0)
    assert b'"timeout_s":600.0' in completion_request("model", [1], known, "r")
    assert b'"group":"task-7"' in completion_request("model", [1], known, "r")
    assert b'"expected_tokens":33' in completion_request("model", [1], known, "r")


async def test_the_second_sibling_is_asked_for_with_the_length_of_the_first():
    engine, environment = FakeEngine(), FakeEnvironment(length=2)
    setup = make_setup(environment, engine)
    setup = replace(setup, policy=replace(setup.policy, lengths=ResponseLengths()))
    for _ in range(2):
        environment.actions.clear()
        trajectory = await Episode(make_spec(), setup).run()
        assert trajectory.status is Status.COMPLETED
    tokens = len(trajectory.steps[0].generation.token_ids)
    assert [sampling.expected_tokens for sampling in engine.samplings] == [0, 0, tokens, tokens]
