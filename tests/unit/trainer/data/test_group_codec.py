"""Groups survive being written as bytes."""

import numpy as np

from rl_agent.trainer.data.group_codec import decode, encode
from rl_agent.trainer.data.samples import Group, Segment, TrainingSample, Versions


def make_group(key: str, *, rewards=(0.0, 1.0), version: int = 0, responses: int = 2) -> Group:
    segment = Segment(
        np.array([7, 8, 9], np.int32),
        np.array([False] * (3 - responses) + [True] * responses),
        np.array([0.0, -1.0, -2.0], np.float32),
    )
    samples = tuple(
        TrainingSample(f"{key}:{i}", (segment,) * (1 + i % 2), reward, Versions(version, version))
        for i, reward in enumerate(rewards)
    )
    return Group(key, samples)


def test_groups_come_back_from_bytes_as_they_were():
    groups = [make_group("a", rewards=(0.25, 1.0, -3.0)), make_group("ü", rewards=()), make_group("c")]
    found = decode(encode(groups))
    assert [describe(group) for group in found] == [describe(group) for group in groups]
    assert decode(encode([])) == []


def describe(group: Group):
    return group.key, [
        (
            s.key,
            s.reward,
            s.versions,
            [[a.tolist() for a in (x.token_ids, x.is_response, x.behaviour)] for x in s.segments],
        )
        for s in group.samples
    ]
