"""Small scenarios of a pool and a trainer."""

from rl_agent.simulation.config import read_config, scenario_of
from rl_agent.simulation.scenario import Scenario
from rl_agent.simulation.spot import Change
from tests.support.pool_setup import later_wins

SMALL = (
    "prompts=8", "group_size=4", "mean_tokens=1500", "longest=4096", "trainer_gpus=2", "engine_gpus=1",
    "trainer_price=20", "engine_price=2", "on_demand_price=8", "max_running=16", "switch_s=5",
    "engine_start_s=20", "resolution_s=2",
)  # fmt: skip


ALWAYS_TWO = [Change(0.0, is_join=True), Change(0.0, is_join=True)]


def scenario(trace=ALWAYS_TWO, *words: str, hours: float = 0.25) -> Scenario:
    return scenario_of(read_config(later_wins((*SMALL, f"hours={hours}", *words))), trace, "trace")


def kills(*, hours: float, every_s: float) -> list[Change]:
    """Two machines, of which the older one vanishes and another comes in its place."""
    changes = list(ALWAYS_TWO)
    for number in range(1, int(hours * 3600 / every_s)):
        changes += [Change(number * every_s, is_join=False), Change(number * every_s, is_join=True)]
    return changes
