"""Scripted agents of the environment `web`: how one plays an episode, and that of `data/sites/shop`."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rl_agent.env.web.element_finder import ElementFinder
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.types import Observation, StepResult, Task

_SEARCH = 'nav input[name="q"]'
Oracle = Callable[[ElementFinder, str], AsyncIterator[str]]
"""Says the actions that solve a task, from what it sees and the goal."""


@dataclass(frozen=True, slots=True)
class ScriptedEpisode:
    """An episode of a scripted agent."""

    reward: float
    is_over: bool
    seen: tuple[Observation, ...]
    """The observations before each action."""
    actions: tuple[str, ...]
    last: Observation


def goal_of(observation: Observation) -> str:
    """Return the goal that an observation tells."""
    return observation.text.splitlines()[0].removeprefix("Goal: ")


async def play(
    environment: WebEnvironment, task: Task, oracle: Oracle, *, seed: int = 0, max_steps: int = 40
) -> ScriptedEpisode:
    """Play an episode by an oracle's actions, until it is over or they end."""
    observation = await environment.reset(task, seed)
    seen: list[Observation] = []
    actions: list[str] = []
    reward, result = 0.0, StepResult(observation)
    async for action in oracle(ElementFinder(environment), goal_of(observation)):
        seen.append(result.observation)
        actions.append(action)
        result = await environment.step(action)
        reward += result.reward
        if result.done or result.truncated or len(actions) >= max_steps:
            break
    return ScriptedEpisode(reward, result.done, tuple(seen), tuple(actions), result.observation)


async def shop(finder: ElementFinder, goal: str) -> AsyncIterator[str]:
    """Do what the goal of a task of the shop asks for."""
    if match := re.fullmatch(r"How many dollars is the (.*)\? Answer with the number\.", goal):
        async for action in _find(finder, match[1]):
            yield action
        price = re.findall(r"\$(\d+)", " ".join(await finder.texts("p")))[0]
        yield f"answer {price}"
    elif match := re.fullmatch(
        r"Put (\d) of the (.*) and (\d) of the (.*) into the cart and confirm it\.", goal
    ):
        for amount, name in ((match[1], match[2]), (match[3], match[4])):
            async for action in _put(finder, name, amount):
                yield action
        yield f"click {await finder.at('#confirm')}"
    elif match := re.fullmatch(r"Order one (.*) for (.*) in (.*), delivery by (.*)\.", goal):
        async for action in _put(finder, match[1], "1"):
            yield action
        yield f"click {await finder.at('#checkout')}"
        yield f"click {await finder.at('#name')}"
        yield f"type {match[2]}"
        yield f"click {await finder.at('#town')}"
        yield f"type {match[3]}"
        yield f"click {await finder.at(f'#by-{match[4]}')}"
        yield f"click {await finder.at('#order')}"
    elif match := re.fullmatch(r"Put one of the cheapest item of (.*) into the cart and confirm it\.", goal):
        async for action in _put_cheapest(finder, match[1]):
            yield action
        yield f"click {await finder.at('#confirm')}"


async def _find(finder: ElementFinder, name: str) -> AsyncIterator[str]:
    yield f"click {await finder.at(_SEARCH)}"
    yield f"type {name}"
    yield "key Enter"
    yield f"click {await finder.at('a.item', name)}"


async def _put(finder: ElementFinder, name: str, amount: str) -> AsyncIterator[str]:
    async for action in _find(finder, name):
        yield action
    if amount != "1":
        yield f"double_click {await finder.at('#amount')}"
        yield f"type {amount}"
    yield f"click {await finder.at('#add')}"


async def _put_cheapest(finder: ElementFinder, category: str) -> AsyncIterator[str]:
    yield f"click {await finder.at(f'#to-{category}')}"
    prices = await _prices(finder)
    yield f"click {await finder.at('#more')}"
    further = await _prices(finder)
    cheapest = min((prices | further).items(), key=lambda item: item[1])[0]
    if cheapest in prices:
        yield "back"
    yield f"click {await finder.at('a.item', cheapest)}"
    yield f"click {await finder.at('#add')}"


async def _prices(finder: ElementFinder) -> dict[str, int]:
    """Return the prices of the items of a list by their names."""
    rows = (row.rpartition(", $") for row in await finder.texts("li"))
    return {name: int(price) for name, _, price in rows}
