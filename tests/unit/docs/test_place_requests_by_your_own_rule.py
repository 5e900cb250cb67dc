"""docs/how-to/place-requests-by-your-own-rule.md does what it says, with the code that stands in it."""

import json
import sys
from dataclasses import replace

import pytest

from rl_agent.cli.__main__ import main
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.settings import load_settings, rules_of
from tests.support.pool_world import RULES, World
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "place-requests-by-your-own-rule.md"
FIELDS = ("tokens_per_s", "cost_per_step", "moves", "lost_tokens", "engines_idle_share")


@pytest.fixture(autouse=True)
def in_the_callers_folder(tmp_path, monkeypatch):
    (tmp_path / "my_policies.py").write_text(blocks(PAGE, "python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_policies", None)


def world_by(name, **prices):
    rules = rules_of(load_settings([f"policy=my_policies:{name}"], {}))
    world = World(rules=replace(RULES, policy=rules.policy, rebalance_gain_s=0.0))
    engines = {name: world.join(name, capacity=16, price=price) for name, price in prices.items()}
    world.run(1.0)
    return world, engines


def test_the_cheapest_engines_are_filled_first():
    world, engines = world_by("CheapestFirst", dear=20.95, cheap=2.66)
    for number in range(20):
        world.submit(f"r{number}", 50, seed=number)
    assert {name: len(engine.attempts) for name, engine in engines.items()} == {"dear": 4, "cheap": 16}
    world.run_to_a_right_end(1000)
    assert world.state.placement.fallbacks == 0


def test_prompts_with_equal_beginnings_share_an_engine_until_it_is_crowded():
    world, engines = world_by("PrefixAffinity", a=1.0, b=1.0, c=1.0)
    for number in range(12):
        world.submit(f"r{number}", 50, seed=7)
    assert sorted(len(engine.attempts) for engine in engines.values()) == [0, 0, 12]
    for number in range(12, 20):
        world.submit(f"r{number}", 50, seed=7)
    assert max(len(engine.attempts) for engine in engines.values()) <= 14
    world.run_to_a_right_end(1000)


def simulated(capsys, *words):
    few = ["hours=0.3", "machines=6", "prompts=32", "up_hours=0.5", "down_hours=0.1"]
    assert main(["what-if", "--json", "--setups", "elastic", *few, *words]) == 0
    (setup,) = json.loads(capsys.readouterr().out)["setups"]
    return setup


def test_the_simulator_plays_the_class_and_always_alike(capsys):
    mine = simulated(capsys, "policy=my_policies:PrefixAffinity")
    assert mine == simulated(capsys, "policy=my_policies:PrefixAffinity")
    assert mine["placement_fallbacks"] == 0
    assert mine != simulated(capsys)
