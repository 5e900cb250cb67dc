"""docs/how-to/come-from-trl-verl-or-prime-rl.md: its function calls one of the real trl.rewards."""

import pytest

from rl_agent.env.reward_function import environment_of
from rl_agent.paths import PROJECT_ROOT
from rl_agent.types import Task
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "come-from-trl-verl-or-prime-rl.md"


@pytest.mark.parametrize(("response", "reward"), [(r"It is \boxed{4}.", 1.0), ("5", 0.0)])
async def test_the_function_of_the_page_scores_as_trls_does(response, reward):
    namespace = {"__name__": "snippet"}
    exec(compile(blocks(PAGE, "python")[0], PAGE.name, "exec"), namespace)
    environment = environment_of(namespace["accuracy"])()
    await environment.reset(Task("sum", "2+2=", "accuracy", "easy", answer="4"), seed=0)
    assert (await environment.step(response)).reward == reward
