"""Groups survive being written as bytes."""

from dataclasses import replace

from rl_agent.trainer.grpo.data.group_codec import decode, encode
from rl_agent.trainer.grpo.data.samples import Group
from tests.unit.trainer.grpo.data.test_intake import make_group


def test_groups_come_back_from_bytes_as_they_were():
    groups = [make_group("a", rewards=(0.25, 1.0, -3.0)), make_group("ü", rewards=()), make_group("c")]
    groups[0] = replace(
        groups[0], samples=tuple(replace(s, rewards={"format": 0.5}) for s in groups[0].samples)
    )
    decoded = decode(encode(groups))
    assert [describe(group) for group in decoded] == [describe(group) for group in groups]
    assert decode(encode([])) == []


def describe(group: Group):
    return group.key, [
        (
            s.key,
            s.reward,
            s.rewards,
            s.versions,
            [[a.tolist() for a in (x.token_ids, x.is_response, x.behaviour)] for x in s.segments],
        )
        for s in group.samples
    ]
