"""The scripted agent of the shop in `data/sites/shop`: it searches, lists, fills in and confirms."""

import re
from collections.abc import AsyncIterator

from rl_agent.testing.web.eyes import Eyes

_SEARCH = 'nav input[name="q"]'


async def shop(eyes: Eyes, goal: str) -> AsyncIterator[str]:
    """Do what the goal of a task of the shop asks for."""
    if match := re.fullmatch(r"How many dollars is the (.*)\? Answer with the number\.", goal):
        async for action in _find(eyes, match[1]):
            yield action
        price = re.findall(r"\$(\d+)", " ".join(await eyes.texts("p")))[0]
        yield f"answer {price}"
    elif match := re.fullmatch(
        r"Put (\d) of the (.*) and (\d) of the (.*) into the cart and confirm it\.", goal
    ):
        for amount, name in ((match[1], match[2]), (match[3], match[4])):
            async for action in _put(eyes, name, amount):
                yield action
        yield f"click {await eyes.at('#confirm')}"
    elif match := re.fullmatch(r"Order one (.*) for (.*) in (.*), delivery by (.*)\.", goal):
        async for action in _put(eyes, match[1], "1"):
            yield action
        yield f"click {await eyes.at('#checkout')}"
        yield f"click {await eyes.at('#name')}"
        yield f"type {match[2]}"
        yield f"click {await eyes.at('#town')}"
        yield f"type {match[3]}"
        yield f"click {await eyes.at(f'#by-{match[4]}')}"
        yield f"click {await eyes.at('#order')}"
    elif match := re.fullmatch(r"Put one of the cheapest item of (.*) into the cart and confirm it\.", goal):
        async for action in _put_cheapest(eyes, match[1]):
            yield action
        yield f"click {await eyes.at('#confirm')}"


async def _find(eyes: Eyes, name: str) -> AsyncIterator[str]:
    yield f"click {await eyes.at(_SEARCH)}"
    yield f"type {name}"
    yield "key Enter"
    yield f"click {await eyes.at('a.item', name)}"


async def _put(eyes: Eyes, name: str, amount: str) -> AsyncIterator[str]:
    async for action in _find(eyes, name):
        yield action
    if amount != "1":
        yield f"double_click {await eyes.at('#amount')}"
        yield f"type {amount}"
    yield f"click {await eyes.at('#add')}"


async def _put_cheapest(eyes: Eyes, category: str) -> AsyncIterator[str]:
    yield f"click {await eyes.at(f'#to-{category}')}"
    prices = await _prices(eyes)
    yield f"click {await eyes.at('#more')}"
    further = await _prices(eyes)
    cheapest = min((prices | further).items(), key=lambda item: item[1])[0]
    if cheapest in prices:
        yield "back"
    yield f"click {await eyes.at('a.item', cheapest)}"
    yield f"click {await eyes.at('#add')}"


async def _prices(eyes: Eyes) -> dict[str, int]:
    """Return the prices of the items of a list by their names."""
    rows = (row.rpartition(", $") for row in await eyes.texts("li"))
    return {name: int(price) for name, _, price in rows}
