"""A class that cannot place requests is one line that names the key, before anything starts."""

from dataclasses import replace

import pytest

from rl_agent.errors import ConfigError
from rl_agent.pool.policy_class import find_policy
from rl_agent.pool.scheduler.policies import BUILT_IN
from rl_agent.pool.settings import load_settings, rules_of
from tests.support.pool_world import RULES

HERE = __name__


class Right:
    def score(self, engine):
        return engine.price_per_hour


class NeedsArguments:
    def __init__(self, weight):
        pass


class NoScore:
    pass


class Waits:
    async def score(self, engine):
        return 0.0


class TakesNothing:
    def score(self):
        return 0.0


class Divides:
    def score(self, engine):
        return 1 / engine.price_per_hour


class ReturnsWords:
    def score(self, engine, request):
        return engine.name


class EndsTheProcess:
    def __init__(self):
        raise SystemExit(0)


def test_a_class_and_the_three_names_are_found():
    assert find_policy("policy", f"{HERE}:Right", ()) is Right
    assert find_policy("policy", "round_robin", ()) is BUILT_IN["round_robin"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fastest", "there are least_work, least_loaded, round_robin, and classes of your own"),
        (":Class", "not of the form package.module:Class"),
        ("no_such_module_at_all:Class", "cannot import no_such_module_at_all: ModuleNotFoundError"),
        (f"{HERE}:Missing", f"{HERE} has no Missing"),
        (f"{HERE}:HERE", "is not a class"),
        (f"{HERE}:NeedsArguments", "cannot be made without arguments: TypeError: .*'weight'"),
        (f"{HERE}:EndsTheProcess", "cannot be made without arguments: SystemExit: 0"),
        (f"{HERE}:NoScore", r"lacks def score\(self, engine\)"),
        (f"{HERE}:Waits", r"lacks def score\(self, engine\)"),
        (f"{HERE}:TakesNothing", r"score takes \(self, engine\) or \(self, engine, request\)"),
        (f"{HERE}:Divides", "score raises ZeroDivisionError: .* for the sample EngineView.*price_per_hour=0"),
        (f"{HERE}:ReturnsWords", "score returns str, not a number, for the sample"),
    ],
)
def test_what_cannot_place_requests_is_one_line_that_names_the_key(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        find_policy("pool.policy", name, ())
    assert str(caught.value).startswith(f"pool.policy={name}: ")
    assert "\n" not in str(caught.value)


def test_a_manager_finds_a_class_in_the_callers_folder(tmp_path, monkeypatch):
    (tmp_path / "policies_of_mine.py").write_text(
        "class Cheap:\n    def score(self, engine):\n        return 0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    config = load_settings(["policy=policies_of_mine:Cheap"], {})
    assert config.module_folders == (tmp_path,)
    assert rules_of(config).policy.__name__ == "Cheap"
    assert replace(RULES, policy=rules_of(config).policy).policy().score(None) == 0
