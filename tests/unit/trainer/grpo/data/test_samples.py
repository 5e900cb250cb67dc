"""Episodes become segments that train what the policy said, and impossible ones cost their group."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rl_agent.chat.context.window import ContextLimits
from rl_agent.trainer.grpo.data.group_codec import decode, encode
from rl_agent.trainer.grpo.data.samples import Versions, make_group
from rl_agent.types import Compaction, Generation, SeenContext, Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_policy, run_episode
from tests.unit.rollout.trajectories_made import make_step, make_trajectory
from tests.unit.trainer.grpo.data.test_intake import intake, keys
from tests.unit.trainer.grpo.data.test_intake import make_group as arriving


def generation(*token_ids: int) -> Generation:
    return Generation(token_ids, tuple(-0.1 * t for t in token_ids), "", "stop", 3, 4)


def steps_of(*turns: tuple[tuple[int, ...], tuple[int, ...], bool]):
    return tuple(
        replace(make_step(prompt=prompt, context_reset=is_reset), generation=generation(*response))
        for prompt, response, is_reset in turns
    )


def sibling(attempt: int, **changes):
    return make_trajectory(group=1, attempt=attempt, **changes)


def test_a_growing_context_is_one_segment_that_trains_what_the_policy_said():
    steps = steps_of(((1, 2), (3, 4), False), ((5,), (6,), False))
    (sample,) = make_group([sibling(0, steps=steps)]).samples
    (segment,) = sample.segments
    assert segment.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert segment.is_response.tolist() == [False, False, True, True, False, True]
    assert segment.behaviour.tolist() == pytest.approx([0, 0, -0.3, -0.4, 0, -0.6])
    assert sample.response_tokens == 3
    assert sample.versions == Versions(0, 0)


def test_a_context_that_was_sent_again_begins_a_segment():
    steps = steps_of(((1, 2), (3,), True), ((1, 2, 9, 5), (6, 7), True))
    (sample,) = make_group([sibling(0, steps=steps)]).samples
    assert [segment.token_ids.tolist() for segment in sample.segments] == [[1, 2, 3], [1, 2, 9, 5, 6, 7]]
    assert [segment.is_response.sum() for segment in sample.segments] == [1, 2]


def test_a_summary_is_its_own_segment_in_the_context_of_its_writing():
    before, after = steps_of(((1, 2), (3,), False), ((8, 9), (5,), True))
    summary = Compaction(1, (1, 2, 3, 4), (), generation(6, 7))
    after = replace(after, seen=SeenContext("summary", whole_from=1, compactions=(summary,)))
    (sample,) = make_group([sibling(0, steps=(before, after))]).samples
    sequences = [[1, 2, 3], [1, 2, 3, 4, 6, 7], [8, 9, 5]]
    assert [segment.token_ids.tolist() for segment in sample.segments] == sequences
    assert [segment.is_response.sum() for segment in sample.segments] == [1, 2, 1]


def test_an_impossible_token_in_a_summary_costs_the_group():
    (step,) = steps_of(((1, 2), (3,), False))
    wrong = Compaction(1, (1,), (), generation(-6))
    step = replace(step, seen=SeenContext("summary", compactions=(wrong,)))
    group = make_group([sibling(0, steps=(step,))])
    assert not group.samples and group.flaw


@pytest.mark.parametrize(
    "limits",
    [
        ContextLimits(),
        ContextLimits("window", max_rounds=2),
        ContextLimits("window", max_model_len=300, response_tokens=30),
        ContextLimits("summary", max_rounds=3, keep_rounds=1, summary_tokens=20, summary_prompt="Sum up."),
    ],
    ids=lambda limits: limits.kind,
)
async def test_every_sampled_token_is_trained_once_in_its_own_context(limits):
    engine = FakeEngine("<think>a</think>go")
    policy = make_policy(engine, limits=limits)
    trajectory = await run_episode(FakeEnvironment(12), policy=policy, max_steps=12)
    (sample,) = make_group([trajectory]).samples
    response = engine.generation().token_ids
    drawn = [tuple(context) for context in engine.contexts]
    trained = [
        tuple(segment.token_ids[:at].tolist())
        for segment in sample.segments
        for at in np.flatnonzero(np.diff(segment.is_response.astype(int)) == 1) + 1
    ]
    assert len(drawn) >= 12 and sorted(trained) == sorted(drawn)
    assert sample.response_tokens == len(drawn) * len(response)


def test_siblings_without_a_reward_are_left_out_in_order():
    failed = sibling(1, status=Status.FAILED, steps=())
    group = make_group([sibling(2, reward=0.5), sibling(0, reward=1.0), failed])
    assert group.key == "1/task-0:1"
    assert [sample.reward for sample in group.samples] == [1.0, 0.5]


def test_a_sequence_names_the_files_of_its_images_in_order():
    paths = [f"/images/aa/{letter * 64}.png" for letter in "ab"]
    seen = SeenContext(images=("a" * 64, "b" * 64, "a" * 64))
    first = replace(make_step(images=(paths[0],)), seen=SeenContext(images=("a" * 64,)))
    second = replace(make_step(images=(paths[1],), context_reset=True), seen=seen)
    group = make_group([sibling(0, steps=(first, second))])
    shown = [segment.images for segment in group.samples[0].segments]
    assert shown == [(paths[0],), (*paths, paths[0])]
    assert [segment.images for segment in decode(encode([group]))[0].samples[0].segments] == shown


STORED = {
    "negative": {"token_ids": (1, -7)},
    "huge": {"token_ids": (1, 2**40)},
    "beyond 64 bits": {"token_ids": (1, 2**70)},
    "positive": {"logprobs": (-1.0, 50.0)},
    "nan": {"logprobs": (-1.0, math.nan)},
    "minus infinity": {"logprobs": (-math.inf, -1.0)},
    "one logprob": {"logprobs": (-1.0,)},
}


def episode_with(attempt, *, prompt=(1, 2), reward=1.0, **generation):
    step = make_step("ab", prompt=prompt)
    steps = (replace(step, generation=replace(step.generation, **generation)),)
    return make_trajectory(attempt=attempt, steps=steps, reward=reward)


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_a_stored_episode_that_cannot_be_costs_its_group_and_is_named(stored, caplog):
    held = intake()
    group = make_group([episode_with(0, reward=0.0), episode_with(1, **stored)])
    held.offer(decode(encode([group])))
    held.offer([arriving("b")])
    assert keys([held.next_group(0)]) == ["b"]
    assert held.rejected == {"impossible_tokens": 1}
    assert "its episode task-0:0:1 holds" in caplog.text


@pytest.mark.parametrize("stored", [{"prompt": (1, -1)}, {"prompt": (2**40,)}, {"reward": math.nan}])
def test_so_does_one_with_such_a_prompt_or_reward(stored):
    assert make_group([episode_with(0), episode_with(1, **stored)]).flaw
