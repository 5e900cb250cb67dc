"""Episodes in a real browser: what is seen, what an action does, what is paid."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from rl_agent.env.web.element_finder import ElementFinder
from rl_agent.errors import EnvironmentFailure
from rl_agent.paths import PROJECT_ROOT
from tests.support.scripted_agents import play
from tests.support.scripted_agents import shop as shop_oracle

from .conftest import hostile, miniwob, shop

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from miniwob_oracles import ORACLES

pytestmark = pytest.mark.asyncio(loop_scope="module")


def pixels(observation):
    (path,) = observation.images
    with Image.open(path) as image:
        return image.size, image.convert("RGB").tobytes()


async def test_equal_seeds_begin_equal_and_other_seeds_do_not(web):
    first, second, third = web(), web(), web()
    seen = [
        await first.reset(miniwob("click-test-2", 4), seed=1),
        await second.reset(miniwob("click-test-2", 4), seed=2),
        await third.reset(miniwob("click-test-2", 5), seed=1),
    ]
    assert [observation.text for observation in seen] == ["Goal: Click button ONE."] * 3
    pictures = [pixels(observation) for observation in seen]
    assert pictures[0] == pictures[1] != pictures[2]
    assert pictures[0][0] == (160, 210)


async def test_a_scripted_agent_earns_1_by_lines_and_by_tool_calls(web):
    played = await play(web(), miniwob("enter-text"), ORACLES["enter-text"])
    assert (played.reward, played.is_over) == (1.0, True)
    environment = web()
    await environment.reset(miniwob("click-test"), 0)
    x, y = (await ElementFinder(environment).at("#subbtn")).split()
    result = await environment.step(json.dumps({"name": "click", "arguments": {"x": int(x), "y": int(y)}}))
    assert (result.reward, result.done) == (1.0, True)


async def test_unreadable_actions_are_answered_and_change_nothing(web):
    environment = web()
    before = await environment.reset(miniwob("click-test"), 0)
    result = await environment.step("I would click the button.")
    assert result.invalid and not result.changed and not result.done
    assert "not an action" in result.observation.text
    assert pixels(before) == pixels(result.observation)


async def test_a_wrong_click_ends_a_task_without_reward(web):
    environment = web()
    await environment.reset(miniwob("click-test-2"), 0)
    result = await environment.step(f"click {await ElementFinder(environment).at('#subbtn2')}")
    assert (result.reward, result.done) == (0.0, True)


async def test_the_shop_takes_an_order_over_several_pages(web):
    environment = web(width=640, height=480)
    played = await play(environment, shop("order"), shop_oracle)
    assert (played.reward, played.is_over) == (1.0, True)
    assert "Page: http://shop.test/confirm" in played.last.text
    assert pixels(played.seen[0])[0] == (640, 480)


async def test_an_episode_whose_first_page_hangs_has_its_own_goal(web):
    environment = web(action_timeout_s=1.0, load_timeout_s=1.0)
    await environment.reset(hostile("calm", goal="The goal before."), 0)

    seen = await environment.reset(hostile("calm", goal="Press go.", loops=1), 0)

    assert "Goal: Press go." in seen.text
    assert "opened again" in seen.text


async def test_an_episode_whose_pages_all_hang_still_has_its_own_goal(web):
    environment = web(action_timeout_s=0.5, load_timeout_s=0.5)
    await environment.reset(hostile("calm", goal="The goal before."), 0)

    seen = await environment.reset(hostile("calm", goal="Press go.", loops=99), 0)

    assert "Goal: Press go." in seen.text


async def test_a_task_whose_page_never_tells_its_goal_fails(web, monkeypatch):
    async def hang(page, seed):
        await asyncio.Event().wait()

    environment = web(action_timeout_s=0.5)
    await environment.reset(miniwob("click-test"), 0)
    monkeypatch.setattr("rl_agent.env.web.miniwob.begin", hang)

    with pytest.raises(EnvironmentFailure, match="did not show its goal"):
        await environment.reset(miniwob("click-test-2"), 0)


async def test_an_episode_sees_nothing_of_another(web):
    first, second = web(), web()
    await first.reset(hostile("calm"), 0)
    await second.reset(hostile("calm"), 0)
    await first.query("() => { localStorage.kept = 'mine'; document.cookie = 'kept=mine' }")
    assert await second.query("() => [localStorage.kept ?? null, document.cookie]") == [None, ""]
    await first.reset(hostile("calm"), 0)
    assert await first.query("() => [localStorage.kept ?? null, document.cookie]") == [None, ""]


async def test_the_pictures_of_an_episode_are_gone_when_it_is_closed(web):
    environment = web()
    (picture,) = (await environment.reset(hostile("calm"), 0)).images
    await environment.close()
    await environment.close()
    assert not await asyncio.to_thread(Path(picture).exists)
