"""A provider served to another process: one answer a call, in one line, whatever its library does."""

import asyncio
import io
import json

import pytest

from rl_agent.autoscaler.providers import remote_serve
from tests.unit.autoscaler.providers import pretended

KIND = {"name": "spot", "price_per_hour": 1.0, "min_engines": 0, "max_engines": 4, "start_s": 60.0}


def call(number, what, name=None):
    return {"id": number, "call": what} | ({} if name is None else {"name": name, "kind": KIND})


async def answered(*calls):
    """What is answered to calls that are made together, by their numbers; then the requests end."""
    requests, answers = asyncio.StreamReader(), io.StringIO()
    for one in calls:
        requests.feed_data(json.dumps(one).encode() + b"\n")
    provider = pretended.connect({"state": "running"})
    expected = sum(one.get("name") != "hangs" for one in calls)
    async with asyncio.timeout(30), asyncio.TaskGroup() as jobs:
        serving = jobs.create_task(remote_serve.serve(provider, {}, requests, answers))
        while answers.getvalue().count("\n") < expected:  # noqa: ASYNC110 - what is waited for is not an event
            await asyncio.sleep(0)
        requests.feed_eof()
        await serving
    found = [json.loads(line) for line in answers.getvalue().splitlines()]
    return {one.pop("id"): one for one in found}


async def test_calls_are_answered_by_number_and_a_hung_call_ends_with_the_input():
    found = await answered(call(1, "start", "hangs"), call(2, "start", "a"), call(3, "machines"))
    assert found == {
        2: {"result": None},
        3: {"result": [{"name": "a", "kind": "spot", "state": "running", **found[3]["result"][0]}]},
    }


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (call(1, "start", "no-quota"), "the quota is used up and this is a second line"),
        (call(1, "start", "bug"), "KeyError: 'bug'"),
        (call(1, "explode"), "there is no call 'explode'"),
        ({"id": 1, "call": "stop"}, "KeyError: 'name'"),
        ({"id": 1, "call": "start", "name": "a", "kind": {"name": "spot"}}, "TypeError: "),
    ],
)
async def test_whatever_goes_wrong_is_one_line_and_the_next_call_is_answered(asked, error):
    found = await answered(asked, call(2, "machines"))
    assert found[1]["error"].startswith(error) and "\n" not in found[1]["error"]
    assert found[2] == {"result": []}


def test_an_error_is_cut():
    assert remote_serve.one_line(" a\n\tb " + "c" * 9000) == "a b " + "c" * 496
