"""Real gymnasium games, played in words."""

import contextlib
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from rl_agent.env.gymnasium import GymnasiumEnvironment
from rl_agent.errors import EnvironmentFailure
from rl_agent.types import Task


def game(env_id="FrozenLake-v1", **extra):
    return Task("g", "Reach the goal.", "gymnasium", "easy", extra={"env_id": env_id} | extra)


LAKE = game(env_kwargs={"is_slippery": False})


async def play(task, actions, *, seed=0, **kwargs):
    """The observations and results of an episode."""
    environment = GymnasiumEnvironment(**kwargs)
    observation = await environment.reset(task, seed)
    results = [await environment.step(action) for action in actions]
    await environment.close()
    return observation.text, results


async def test_the_first_observation_has_prompt_state_and_legal_actions():
    text, _ = await play(LAKE, [])
    assert text == "Reach the goal.\n\n[S]FFF\nFHFH\nFFFH\nHFFG\n\nAnswer with one of: left, down, right, up."


async def test_a_picture_replaces_the_state_in_words_and_is_gone_after_closing():
    environment = GymnasiumEnvironment(view="image")
    first = await environment.reset(LAKE, 0)
    second = (await environment.step("down")).observation

    assert first.text == "Reach the goal.\n\nAnswer with one of: left, down, right, up."
    assert second.text == ""
    paths = [Path(path) for path in first.images + second.images]
    before, after = (Image.open(path).convert("RGB") for path in paths)
    assert before.size == after.size == (256, 256)
    changed = ImageChops.difference(before, after).getbbox()
    assert changed is not None and changed[2] <= 64 and changed[3] <= 128  # the left upper cells alone
    await environment.close()
    assert not any(path.exists() for path in paths)


def formats(images):
    names = []
    for path in images:
        with Image.open(path) as image:
            names.append(image.format)
    return names


@pytest.mark.parametrize("env_id", ["CliffWalking-v1", "Taxi-v4", "Blackjack-v1", "FrozenLake8x8-v1"])
async def test_every_game_can_be_shown_as_a_picture_until_it_is_over(env_id):
    environment = GymnasiumEnvironment(view="image")
    await environment.reset(game(env_id), 0)
    for action in ("left", "stick", "south"):
        with contextlib.suppress(EnvironmentFailure):  # it was over
            result = await environment.step(action)
            assert formats(result.observation.images) in (["PNG"], [])
    await environment.close()
    await environment.close()


async def test_walking_to_the_goal_pays_one_at_the_end():
    path = ["down", "I go down.", "<answer>RIGHT</answer>", "right", "down", "right"]
    _, results = await play(LAKE, path)

    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 1]
    assert [result.done for result in results] == [False] * 5 + [True]
    assert results[0].observation.text == "SFFF\n[F]HFH\nFFFH\nHFFG"


async def test_falling_into_a_hole_ends_without_a_reward():
    _, results = await play(LAKE, ["right", "down"])

    assert (results[-1].done, results[-1].reward) == (True, 0.0)


@pytest.mark.parametrize("action", ["jump", "", "left or right", "leftover", "<answer></answer> up"])
async def test_anything_but_one_action_is_answered_with_the_legal_ones(action):
    _, (result,) = await play(LAKE, [action])

    assert result.observation.text.endswith("Answer with one of: left, down, right, up.")
    assert (result.changed, result.done, result.reward) == (False, False, 0.0)


async def test_an_action_against_the_wall_changes_nothing():
    _, results = await play(LAKE, ["up", "right"])

    assert [result.changed for result in results] == [False, True]


async def test_the_librarys_time_limit_truncates():
    _, results = await play(LAKE, ["left"] * 100)

    assert (results[-1].truncated, results[-1].done) == (True, False)
    assert not results[-2].truncated


async def test_an_instance_can_be_used_again_and_closed_twice():
    environment = GymnasiumEnvironment()
    first = await environment.reset(LAKE, seed=0)
    await environment.step("down")

    assert await environment.reset(LAKE, seed=0) == first
    await environment.close()
    await environment.close()


async def test_cliff_walking_is_solved_at_the_far_end_with_either_reward():
    path = ["up", *["right"] * 11, "down"]
    text, results = await play(game("CliffWalking-v1"), path)
    _, paid = await play(game("CliffWalking-v1"), path, reward="gymnasium")

    assert "x  C  C" in text
    assert [result.reward for result in results] == [0] * 12 + [1]
    assert results[-1].done
    assert [result.reward for result in paid] == [-1] * 13


async def test_taxi_tells_where_everyone_is():
    text, (moved, refused) = await play(game("Taxi-v4", seed=3), ["south", "pickup"])

    assert "|R: |[ ]: :G|" in text
    assert "The taxi is in row 0, column 2 (from 0). The passenger waits at R and wants to go to Y." in text
    assert "\x1b" not in text and "(South)" not in moved.observation.text
    assert (moved.changed, refused.changed) == (True, False)


async def test_blackjack_pays_for_a_win():
    for seed in range(20):
        text, (result,) = await play(game("Blackjack-v1"), ["stick"], seed=seed)
        _, (paid,) = await play(game("Blackjack-v1"), ["stick"], seed=seed, reward="gymnasium")
        assert "The dealer shows" in text
        assert result.done
        assert result.reward == (paid.reward > 0)


async def test_the_tasks_seed_is_the_same_problem_for_every_attempt():
    fixed = {(await play(game("Taxi-v4", seed=5), [], seed=seed))[0] for seed in range(5)}
    free = {(await play(game("Taxi-v4"), [], seed=seed))[0] for seed in range(5)}

    assert (len(fixed), len(free)) == (1, 5)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"env_id": None}, "env_id is None; use one of FrozenLake, "),
        ({"env_id": "os:Thing-v1"}, "env_id is 'os:Thing-v1'"),
        ({"env_id": "Chess-v1"}, "env_id is 'Chess-v1'"),
        ({"env_id": "Taxi"}, "with its version"),
        ({"env_kwargs": []}, "env_kwargs is not an object"),
        ({"seed": -1}, "seed is not a whole number"),
    ],
)
async def test_a_task_that_names_no_game_is_refused(extra, message):
    task = game(**extra)
    with pytest.raises(ValueError, match=message):
        GymnasiumEnvironment.check_task(task)
    with pytest.raises(EnvironmentFailure, match=message):
        await GymnasiumEnvironment().reset(task, seed=0)
