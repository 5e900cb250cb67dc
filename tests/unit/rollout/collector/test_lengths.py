"""The collector tells a pool how long a response will be."""

from dataclasses import replace

import pytest

from rl_agent.engine.wire import Sampling, completion_request
from rl_agent.rollout.collector.lengths import MOST_REMEMBERED, ResponseLengths
from rl_agent.types import Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_policy, run_episode


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


@pytest.mark.parametrize("content", [None, "", "{", '{"sums": 3}'])
def test_a_file_that_is_missing_or_damaged_is_not_missed(tmp_path, content):
    path = tmp_path / "lengths.json"
    if content is not None:
        path.write_text(content)
    assert ResponseLengths.load(path).expected("sums", 0) == 0


def test_only_where_it_is_known_a_request_says_it():
    sampling = Sampling(1.0, 1.0, -1, 0.0, 64, 7)
    known = replace(sampling, expected_tokens=33, group="task-7", timeout_s=600.0)
    for name, value in (("timeout_s", b"600.0"), ("group", b'"task-7"'), ("expected_tokens", b"33")):
        assert name.encode() not in completion_request("model", [1], sampling, "r")
        assert b'"%s":%s' % (name.encode(), value) in completion_request("model", [1], known, "r")


async def test_the_second_sibling_is_asked_for_with_the_length_of_the_first():
    engine = FakeEngine()
    policy = make_policy(engine, lengths=ResponseLengths())
    trajectories = [await run_episode(FakeEnvironment(length=2), policy=policy) for _ in range(2)]
    assert [trajectory.status for trajectory in trajectories] == [Status.COMPLETED] * 2
    tokens = len(trajectories[0].steps[0].generation.token_ids)
    assert [sampling.expected_tokens for sampling in engine.samplings] == [0, 0, tokens, tokens]
