"""What the provider `ray` lists of actors that answer, that do not, and that are gone."""

import sys
from types import SimpleNamespace

import pytest

from rl_agent.autoscaler.providers.ray_cluster import connect
from rl_agent.pool.demand.records import MachineState, ProviderError, RentedMachine

SETTINGS = {"fleet": "rl-1", "manager": "http://127.0.0.1:5000", "namespace": "n", "address": "auto"}


SILENT = object()
"""The answer of an actor that is slow, or has not begun."""


class RayActorError(Exception):
    pass


class ActorUnavailableError(RayActorError):
    """Its node does not answer for now; Ray's is a RayActorError, too."""


@pytest.fixture
def actors(monkeypatch):
    """Answers of actors by their names: a value, or an exception that asking for it raises."""
    known = {}

    def actor(name):
        known["asked for"].append(name) if "asked for" in known else None
        return SimpleNamespace(
            name=name,
            is_leaving_pool=SimpleNamespace(remote=lambda: known[name]),
            leave_pool=SimpleNamespace(remote=lambda: known[name]),
        )

    def get(answer, timeout):
        if isinstance(answer, Exception):
            raise answer
        return answer

    errors = SimpleNamespace(RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError)
    ray = SimpleNamespace(
        is_initialized=lambda: True,
        wait=lambda asked, num_returns=1, timeout=None: ([one for one in asked if one is not SILENT], []),
        get=get,
        get_actor=actor,
        kill=lambda one: known.pop(one.name),
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


async def test_drain_that_does_not_reach_its_actor_fails_and_keeps_the_machine(actors):
    """An answer that is an error is ready, too: it was taken for a drain that had begun."""
    provider = connect(SETTINGS)
    actors["spot/rl-1-1"] = False
    assert await provider.machines() == [RentedMachine("rl-1-1", "spot", MachineState.RUNNING)]
    actors["spot/rl-1-1"] = ActorUnavailableError("the node does not answer")
    with pytest.raises(
        ProviderError, match=r"^rl-1-1: its node does not answer now, so the machine was not told"
    ):
        await provider.stop("rl-1-1")
    assert await provider.machines() == [RentedMachine("rl-1-1", "spot", MachineState.RUNNING)]
    actors["spot/rl-1-1"] = True
    await provider.stop("rl-1-1")
    assert await provider.machines() == [RentedMachine("rl-1-1", "spot", MachineState.STOPPING)]


async def test_a_drain_of_an_actor_that_has_died_is_done(actors):
    provider = connect(SETTINGS)
    actors["spot/rl-1-1"] = RayActorError("it died")
    await provider.stop("rl-1-1")
    assert await provider.machines() == []


async def test_slow_actor_of_an_earlier_process_drains_before_it_is_killed(actors, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    provider = connect(SETTINGS | {"drain_s": 60.0})
    actors["spot/rl-1-1"] = SILENT
    await provider.stop("rl-1-1")
    assert "spot/rl-1-1" in actors
    now = 61.0
    await provider.stop("rl-1-1")
    assert "spot/rl-1-1" not in actors


async def test_a_stop_looks_up_one_actor_and_a_machine_that_is_gone_is_forgotten(actors):
    provider = connect(SETTINGS | {"drain_s": 60.0})
    actors |= {f"spot/rl-1-{number}": SILENT for number in range(9)}
    actors["asked for"] = looked_up = []
    await provider.stop("rl-1-3")
    assert looked_up == ["spot/rl-1-3"]
    assert list(provider._stopped_at) == ["rl-1-3"]
    del actors["spot/rl-1-3"]
    await provider.machines()
    assert provider._stopped_at == {}
