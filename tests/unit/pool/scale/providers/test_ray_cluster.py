"""What the provider `ray` lists of actors that answer, that do not, and that are gone."""

import sys
from types import SimpleNamespace

import pytest

from rl_agent.pool.scale.providers.ray_cluster import connect
from rl_agent.pool.scale.records import MachineState, RentedMachine

SETTINGS = {"fleet": "rl-1", "manager": "http://127.0.0.1:5000", "namespace": "n", "address": "auto"}


class RayActorError(Exception):
    pass


class ActorUnavailableError(RayActorError):
    """Its node does not answer for now; Ray's is a RayActorError, too."""


@pytest.fixture
def actors(monkeypatch):
    """Answers of actors by their names: a value, or an exception that asking for it raises."""
    known = {}

    def actor(name):
        return SimpleNamespace(
            is_leaving_pool=SimpleNamespace(remote=lambda: known[name]), leave_pool=SimpleNamespace()
        )

    def get(answer, timeout):
        if isinstance(answer, Exception):
            raise answer
        return answer

    errors = SimpleNamespace(RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError)
    ray = SimpleNamespace(
        is_initialized=lambda: True,
        wait=lambda asked, num_returns, timeout: (asked, []),
        get=get,
        get_actor=actor,
        exceptions=errors,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace(list_named_actors=lambda: list(known)))
    return known


async def test_an_actor_whose_node_is_cut_off_is_there_and_one_that_died_is_not(actors):
    actors["spot/rl-1-1"] = ActorUnavailableError("the node does not answer")
    actors["spot/rl-1-2"] = RayActorError("it died")
    actors["spot/rl-1-3"] = True
    actors["spot/rl-2-1"] = False  # of another fleet
    assert await connect(SETTINGS).machines() == [
        RentedMachine("rl-1-1", "spot", MachineState.RUNNING),
        RentedMachine("rl-1-3", "spot", MachineState.STOPPING),
    ]
