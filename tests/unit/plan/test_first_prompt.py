"""The size of a first prompt, and whether it leaves room for a response."""

from contextlib import nullcontext

import pytest

from rl_agent.errors import ConfigError
from rl_agent.plan.first_prompt import FirstPrompt, FirstPrompts, check_room
from rl_agent.plan.hub import FoundModel
from rl_agent.types import Observation, Task
from tests.support.rollout_setup import make_plan
from tests.support.tiny_chat import tiny_chat

TASK = Task("sum-1", "2+2=", "math", "easy", "4")


@pytest.fixture
def prompts(tmp_path):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1")
    folder = tmp_path / "model"
    return FirstPrompts(plan.config, FoundModel(str(folder), folder, {}, frozenset()))


async def test_a_prompt_of_text_is_measured_as_the_rollout_tokenizes_it(prompts):
    measured = await prompts.measure(TASK, Observation("2+2="), ())
    assert measured == FirstPrompt("sum-1", len(tiny_chat().start(None, Observation("2+2="))), True, 0)
    longer = await prompts.measure(TASK, Observation("2+2=" * 9), ())
    assert longer.tokens > measured.tokens


@pytest.mark.parametrize(("limit", "is_refused"), [(21, False), (20, True), (5, True)])
def test_a_context_is_refused_only_where_not_one_prompt_leaves_room(limit, is_refused):
    prompts = [FirstPrompt("long", 99, True), FirstPrompt("short", 20, False, 3)]
    message = r"engine\.max_model_len=.* task short has at least 20 tokens \(3 of them for its tools\)"
    with pytest.raises(ConfigError, match=message) if is_refused else nullcontext():
        check_room(prompts, limit)


def test_where_no_prompt_is_known_nothing_is_refused():
    check_room([], 1)
