"""The loop of a process's rollouts goes on with what was begun early, or breaks it off."""

import asyncio
import logging
import os
import shutil
import signal
from dataclasses import replace

import psutil
from yarl import URL

from rl_agent.cluster.member.member import Member
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.connections import EngineConnections
from rl_agent.errors import RetryLater
from rl_agent.rollout import engine_access
from rl_agent.rollout import run as rollout_run
from rl_agent.rollout.loop import RolloutLoop
from tests.integration.env.agent.programs import page_client
from tests.integration.rollout.held_episodes import TASKS, Held, assignment, next_of, recorded
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks


async def let_go(assignment):
    """Let the first iteration end once the second is begun."""
    Held.go_on.set()
    return await next_of(assignment)


def test_a_loop_breaks_off_what_was_begun_early_where_another_is_ordered(held_plan):
    member = Member.alone(held_plan)
    with RolloutLoop(let_go) as loop:
        for iteration in (1, 3, 2):
            assert loop.run(assignment(held_plan, iteration), member)[1] == 0
            assert loop.has_next == (iteration < 3)
    assert sorted(held_plan.paths.iterations("train")) == [1, 2, 3]
    for iteration in (1, 2, 3):
        assert len(set(recorded(held_plan, iteration))) == len(recorded(held_plan, iteration)) == TASKS


def test_an_early_rollout_goes_on_beside_the_evaluation_before_it(held_plan, monkeypatch):
    collect, begun = rollout_run._collect, []

    async def counted(assignment, *rest):
        begun.append((assignment.split, assignment.iteration))
        return await collect(assignment, *rest)

    monkeypatch.setattr(rollout_run, "_collect", counted)
    shutil.copy(held_plan.tasks_file("train"), held_plan.tasks_file("test"))
    with RolloutLoop(let_go) as loop:
        for split, iteration in (("train", 1), ("test", 2), ("train", 2)):
            ordered = replace(assignment(held_plan, iteration), split=split)
            counts, _ = loop.run(ordered, Member.alone(held_plan))
            assert counts.is_all_completed
            assert loop.has_next
    assert begun == [("train", 1), ("train", 2), ("test", 2), ("train", 3)]


def test_an_early_rollout_that_fails_is_begun_again_when_it_is_ordered(held_plan, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    collect, failures = rollout_run._collect, ["the engine was away"]

    async def failing_once(assignment, *rest):
        if assignment.iteration == 2 and failures:
            raise RetryLater(failures.pop())
        return await collect(assignment, *rest)

    monkeypatch.setattr(rollout_run, "_collect", failing_once)
    with RolloutLoop(let_go) as loop:
        for iteration in (1, 2):
            counts, _ = loop.run(assignment(held_plan, iteration), Member.alone(held_plan))
            assert counts.is_all_completed
    assert not failures, "iteration 2 was not begun early"
    assert "iteration 2 was begun early and ended before its order: the engine was away" in caplog.text


def test_connections_to_the_engine_outlive_a_rollout(held_plan, monkeypatch):
    monkeypatch.setattr(engine_access, "engine_connections", lambda plan: EngineConnections(None, 600.0))
    Held.held.clear()
    port = URL(held_plan.config.engine.base_url).port

    def connections():
        of_process = psutil.Process().net_connections("tcp")
        return {each.laddr.port for each in of_process if each.raddr and each.raddr.port == port}

    with RolloutLoop() as loop:
        loop.run(assignment(held_plan, 1), Member.alone(held_plan))
        before = connections()
        loop.run(assignment(held_plan, 2), Member.alone(held_plan))
        assert before & connections()
    assert not connections()


def test_a_signal_ends_the_ordered_rollout_and_the_early_one(held_plan):
    async def interrupt(assignment):
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return await next_of(assignment)

    with RolloutLoop(interrupt) as loop:
        assert loop.run(assignment(held_plan, 1), Member.alone(held_plan)) == (None, signal.SIGTERM)
        assert not loop.has_next
    assert len(recorded(held_plan, 1)) < TASKS
    assert not Held.alive


def test_an_agent_that_runs_already_waits_for_the_next_rollout(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    words = (f"+env_config.kwargs.agent.listen={address}", "env_config.train_tasks_rollout_size=-1")
    with simulated_engine(tmp_path) as url, page_client(tmp_path, address) as client:
        plan = make_plan(tmp_path, *words, engine_url=url)
        write_tasks(plan, TASKS, env="agent")
        with RolloutLoop() as loop:
            for iteration in (1, 2):
                counts, _ = loop.run(assignment(plan, iteration), Member.alone(plan))
                assert counts.is_all_completed
                assert len(set(recorded(plan, iteration))) == TASKS
                assert client.poll() is None
        assert client.wait(20) == 0
