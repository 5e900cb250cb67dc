"""Instances of a kind live at a place, and it is asked whether the kind can be used."""

import os

import pytest

from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.remote import environments
from rl_agent.env.remote.environments import Environments, worker_count
from rl_agent.errors import ConfigError

OWN = {
    "asking": "tests.unit.env.remote.test_environments:Asking",
    "calm": "tests.unit.env.remote.test_environments:Calm",
    "wild": "tests.unit.env.remote.test_environments:Wild",
}


class Wild:
    async def reset(self, task, seed): ...
    async def step(self, action): ...
    async def close(self): ...


class Calm(Wild):
    is_cooperative = True


class Asking:
    async def run(self, task, seed, session): ...
    async def close(self): ...

    @staticmethod
    def scorer():
        return "calm"


def config(*, workers=None, servers=(), **fields):
    fields = {"kinds": OWN, "module_folders": (), "kwargs": {}} | fields
    return EnvConfig.model_construct(workers=workers, servers=servers, **fields)


class Elsewhere:
    """Workers or servers: they say what was made there."""

    def create(self, kind, crashes):
        return (kind, crashes)


def place_of(kind, **settings):
    """Return the class of an instance that was made here, or "there"."""
    environments = Environments(config(kwargs={kind: {}}, **settings))
    environments._places = Elsewhere()
    instance = environments.create(kind, crashes=3)
    return "there" if instance == (kind, 3) else type(instance).__name__


@pytest.mark.parametrize(
    ("settings", "calm", "wild"),
    [
        ({}, "Calm", "there"),
        ({"workers": 2}, "there", "there"),
        ({"servers": ("http://127.0.0.1:1",)}, "there", "there"),
    ],
    ids=["by what a kind says", "workers", "servers"],
)
def test_only_cooperative_environments_live_here_unless_a_number_is_given(settings, calm, wild):
    assert (place_of("calm", **settings), place_of("wild", **settings)) == (calm, wild)


def test_a_kind_that_asks_the_model_itself_lives_here():
    assert place_of("asking", workers=2) == "Asking"
    there = Environments(config(workers=2)).classes
    assert (there.asks("asking"), there.asks("calm")) == (True, False)
    assert (there.scorer_of("asking"), there.scorer_of("calm")) == ("calm", "")


async def test_without_workers_all_live_here():
    async with Environments(config(workers=0)) as here:
        assert isinstance(here.create("wild"), Wild)


def test_whoever_only_checks_makes_instances_here():
    assert isinstance(Environments(config(workers=2)).create("wild"), Wild)


@pytest.mark.parametrize(("workers", "cores", "most"), [(3, 64, 3), (0, 64, 0), (None, 4, 4), (None, 64, 16)])
def test_there_is_a_worker_a_core_up_to_sixteen_unless_a_number_is_given(monkeypatch, workers, cores, most):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert worker_count(config(workers=workers)) == most


def test_servers_are_asked_and_this_machine_need_not_have_what_they_have(monkeypatch):
    questions = []
    note = lambda config, kinds, tasks: questions.append((kinds, tasks))  # noqa: E731
    monkeypatch.setattr(environments, "check_servers", note)
    absent = {"kinds": {"far": "no.such.module:Class"}}
    there = Environments(config(servers=("http://127.0.0.1:1",), **absent))
    there.check(["far"], ["a task"])
    there.check_here(["far"])
    assert questions == [(["far"], ["a task"])]
    for check in (Environments(config(**absent)).check, Environments(config(**absent)).check_here):
        with pytest.raises(ConfigError, match=r"no\.such\.module"):
            check(["far"])
    assert len(questions) == 1
