"""Members on a real folder, with their threads: coming, meeting, failing, leaving."""

import asyncio
import functools
import json
import signal
import subprocess
import threading
from contextlib import contextmanager

import pytest

from rl_agent.cluster.folder import SharedFolder
from rl_agent.cluster.member import Member
from rl_agent.cluster.records import MASTER_FILE
from rl_agent.config import Command, new_incarnation
from rl_agent.errors import ConfigError, DeadlineError, RetryLater, StoreError
from tests.rollout_setup import make_plan

TIMEOUT_S = 20.0
FAST = ("cluster.heartbeat_s=0.1", "cluster.lease_s=3", f"cluster.start_timeout_s={TIMEOUT_S}")


@functools.cache
def base_plan(folder, *words):
    return make_plan(folder, *FAST, *words, engine_url="http://127.0.0.1:1", model=folder)


def plan(folder, rank, num_nodes, *words, **changes):
    made = base_plan(folder, *words)
    values = made.command.model_dump()
    values |= {"num_nodes": num_nodes, "rank": rank, "rank_weights": (1,) * num_nodes}
    own = {"incarnation": new_incarnation(), "command": Command.model_validate(values)}
    return made.model_copy(update=own | changes)


class Background(threading.Thread):
    """A node in a thread of its own: `job` gets its member. What it returned or raised is in `outcome`."""

    def __init__(self, plan, job, *, is_joiner=False, environ=None):
        super().__init__(daemon=True)
        self.plan, self.job, self.is_joiner, self.environ = plan, job, is_joiner, environ or {}
        self.lines, self.outcome = [], None
        self.start()

    def run(self):
        try:
            with Member.enter(
                self.plan, self.environ, is_joiner=self.is_joiner, on_line=self.lines.append
            ) as member:
                self.outcome = self.job(member)
        except Exception as error:
            self.outcome = error

    def result(self):
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "the node hangs"
        return self.outcome


def follow(member):
    """A worker that does nothing but meet the others; what was decided."""
    seen = []
    while (order := member.next_order()) is not None:
        member.finish(order.iteration, order.phase, "done")
        decision = member.wait_decision(order.iteration, order.phase, timeout_s=TIMEOUT_S)
        seen.append((order.phase, decision.outcome, decision.words))
    return seen


def wait_to_die(member):
    """Waits for an order that never comes."""
    return member.next_order()


@contextmanager
def master(folder, num_nodes, *words, lines=None, **changes):
    lines = [] if lines is None else lines
    with Member.enter(plan(folder, 0, num_nodes, *words, **changes), {}, on_line=lines.append) as member:
        yield member


def until(is_true, what):
    """Wait for something that another thread brings about."""
    done, timer = threading.Event(), threading.Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if is_true():
            done.set()
            break
        timer.wait(0.01)
    assert done.is_set(), what


def cluster_threads():
    return [thread.name for thread in threading.enumerate() if thread.name in ("heartbeat", "cluster")]


def read_master(folder):
    return json.loads((folder / "log" / MASTER_FILE).read_text())


# --- one node ---
def test_alone_a_phase_is_ordered_finished_and_decided_without_threads(tmp_path):
    with Member.alone(plan(tmp_path, 3, 4)) as member:
        assert (member.rank, member.is_master, member.is_alone) == (0, True, True)
        order = member.give_order(1, "rollout")
        member.finish(1, "rollout", "skipped", ("why",))
        decision = member.wait_decision(1, "rollout", timeout_s=1)
        assert (order.seq, decision.outcome, decision.words) == (1, "skipped", ("why",))
        assert cluster_threads() == []
    left = [str(path.relative_to(tmp_path / "log")) for path in (tmp_path / "log").rglob("*.json")]
    assert sorted(left) == [
        "flags/run/1/1/rollout/decision.json",
        "flags/run/1/1/rollout/rank-0.json",
    ]


def test_a_run_of_one_node_ends_its_threads_and_says_how_it_ended(tmp_path):
    with master(tmp_path, 1) as member:
        assert cluster_threads() == ["heartbeat", "cluster"]
        member.give_order(1, "update")
        member.finish(1, "update", "done")
        assert member.wait_decision(1, "update", timeout_s=1).outcome == "done"
    assert cluster_threads() == []
    assert read_master(tmp_path)["ended"] == {"status": 0, "reason": "done"}


# --- meeting ---
def test_a_worker_that_comes_first_waits_and_then_both_go_through_every_phase(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), follow)
    until(lambda: list((tmp_path / "log" / "cluster").rglob("*.json")), "the worker shows no life")
    with master(tmp_path, 2) as member:
        for iteration in (1, 2):
            member.give_order(iteration, "rollout")
            member.finish(iteration, "rollout", "done", (f"model {iteration}",))
            assert member.wait_decision(iteration, "rollout", timeout_s=TIMEOUT_S).outcome == "done"
    assert worker.result() == [("rollout", "done", ("model 1",)), ("rollout", "done", ("model 2",))]


def test_a_deadline_names_who_has_not_finished_and_what_they_are_at(tmp_path):
    released = threading.Event()

    def be_busy(member):
        member.next_order()
        member.set_doing("digging")
        released.wait(TIMEOUT_S)

    Background(plan(tmp_path, 1, 2), be_busy)
    with master(tmp_path, 2) as member:
        member.give_order(1, "rollout")
        member.finish(1, "rollout", "done")
        record = member.members[1].incarnation
        until(lambda: member.record_of(record).doing == "digging", "the worker does not dig")
        with pytest.raises(
            DeadlineError, match=r"iteration 1, rollout: waited 0 s for rank 1 \(.*at: digging"
        ):
            member.wait_decision(1, "rollout", timeout_s=0.05)
        released.set()


def test_what_the_master_decides_reaches_the_workers_with_its_words(tmp_path):
    def wait(member):
        return member.wait_decision(1, "prepared-1", timeout_s=TIMEOUT_S).words

    worker = Background(plan(tmp_path, 1, 2), wait)
    with master(tmp_path, 2) as member:
        member.decide(1, "prepared-1", "done", ("0,1", "10.0.0.1:29500"))
        assert worker.result() == ("0,1", "10.0.0.1:29500")


def test_a_run_that_breaks_off_ends_the_waits_of_the_workers_and_tells_why(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), wait_to_die)
    with pytest.raises(StoreError), master(tmp_path, 2):
        raise StoreError("the disk is full")
    failure = worker.result()
    assert isinstance(failure, RetryLater) and "broke the run off: the disk is full" in str(failure)


def test_a_silent_master_is_named_within_the_lease(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), wait_to_die)
    member = Member.enter(plan(tmp_path, 0, 2), {})
    for turns in member._turns:
        turns.stop()
    failure = worker.result()
    assert (
        isinstance(failure, RetryLater)
        and "the master, rank 0 (" in str(failure)
        and "silent" in str(failure)
    )
    member.__exit__(None, None, None)


# --- chunks ---
def collect(member, iteration=1):
    """Claims and reports until the phase is closed; the chunks of this node."""

    async def run():
        work, mine = member.work(iteration, "rollout"), []
        if member.is_master:
            work.on_lost = lambda shard: (0, set())
            await work.publish([[n] for n in range(100)], digest="d", weight_version=3)
        async with asyncio.TaskGroup() as jobs:
            close = jobs.create_task(close_when_complete(work)) if member.is_master else None
            while True:
                chunk = await work.next_chunk()
                if chunk is None:
                    if not await work.more_or_closed():
                        break
                    continue
                work.set_shard(f"shard-{member.rank}")
                mine.append(chunk)
                work.report(chunk.id)
        assert (work.sample_digest, work.weight_version) == ("d", 3)
        return mine, close.result() if close else None

    async def close_when_complete(work):
        parts = await work.all_complete()
        work.close()
        return parts

    return asyncio.run(run())


def test_every_chunk_is_run_by_one_node_and_the_parts_name_the_files(tmp_path):
    def work(member):
        order = member.next_order()
        mine, _ = collect(member)
        member.finish(order.iteration, order.phase, "done")
        return mine

    workers = [Background(plan(tmp_path, rank, 3), work) for rank in (1, 2)]
    with master(tmp_path, 3) as member:
        member.give_order(1, "rollout")
        mine, parts = collect(member)
        member.finish(1, "rollout", "done")
        member.wait_decision(1, "rollout", timeout_s=TIMEOUT_S)
        theirs = [worker.result() for worker in workers]
    chunks = [*mine, *theirs[0], *theirs[1]]
    assert sorted(index for chunk in chunks for index in chunk.indices) == list(range(100))
    with_work = [rank for rank, done in enumerate([mine, *theirs]) if done]
    assert [(part.name, part.rank, part.cut_bytes) for part in parts] == [
        (f"shard-{rank}", rank, None) for rank in with_work
    ]


def test_a_phase_that_was_broken_off_on_a_node_goes_on_with_what_it_had_claimed(tmp_path):
    async def run(member):
        work = member.work(1, "rollout")
        await work.publish([[n] for n in range(24)], digest="d", weight_version=1)
        first, second = await work.next_chunk(), await work.next_chunk()
        work.report(first.id)
        again = member.work(1, "rollout")
        assert again.is_published and await again.next_chunk() == second
        assert (await again.next_chunk()).id not in (first.id, second.id)

    with master(tmp_path, 1) as member:
        member.give_order(1, "rollout")
        asyncio.run(run(member))


def test_a_joiner_gets_a_rank_of_its_own_and_its_chunks_come_back_when_it_leaves(tmp_path):
    def claim_and_leave(member):
        order = member.next_order()
        chunk = asyncio.run(member.work(order.iteration, order.phase).next_chunk())
        while chunk is None:
            chunk = asyncio.run(member.work(order.iteration, order.phase).next_chunk())
        return member.rank, chunk

    with master(tmp_path, 1) as member:
        member.give_order(1, "rollout")
        work = member.work(1, "rollout")
        asyncio.run(work.publish([[n] for n in range(16)], digest="d", weight_version=1))
        rank, chunk = Background(plan(tmp_path, 0, 1), claim_and_leave, is_joiner=True).result()
        assert rank == 1
        mine = []
        while len(mine) < 2:
            asyncio.run(work.more_or_closed())
            if found := asyncio.run(work.next_chunk()):
                work.report(found.id)
                mine.append(found)
        assert chunk.indices in [found.indices for found in mine]
        asyncio.run(work.all_complete())


# --- who may come ---
def test_leftovers_of_earlier_runs_confuse_nobody(tmp_path):
    with master(tmp_path, 1, run_id="earlier"):
        pass
    with pytest.raises(StoreError), master(tmp_path, 1):
        raise StoreError("an earlier start of this very attempt")
    record = next((tmp_path / "log" / "cluster" / "ranks" / "run" / "1").glob("*.json"))
    dead = json.loads(record.read_text()) | {"incarnation": "dead", "rank": 1, "state": "member"}
    record.with_name("dead.json").write_text(json.dumps(dead))
    (tmp_path / "log" / MASTER_FILE).write_text("{")

    worker = Background(plan(tmp_path, 1, 2), follow)
    with master(tmp_path, 2) as member:
        assert {m.incarnation for m in member.members}.isdisjoint({"dead"})
        member.give_order(1, "update")
        member.finish(1, "update", "done")
        member.wait_decision(1, "update", timeout_s=TIMEOUT_S)
    assert worker.result() == [("update", "done", ())]


def test_a_second_node_of_a_living_rank_is_refused_with_a_line_that_names_it(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), follow)
    with master(tmp_path, 2) as member:
        twin = Background(plan(tmp_path, 1, 2), follow).result()
        assert isinstance(twin, ConfigError) and "rank 1 is taken by process" in str(twin)
        assert member.members[1].status == "alive"
    assert worker.result() == []


def test_a_node_with_another_configuration_is_refused(tmp_path):
    other = plan(tmp_path, 1, 2)
    other = other.model_copy(update={"config": other.config.model_copy(update={"seed": 99})})
    worker = Background(other, follow)
    with (
        pytest.raises(DeadlineError, match=r"the start: waited .* for rank 1"),
        master(tmp_path, 2, "cluster.start_timeout_s=1"),
    ):
        raise AssertionError("began without rank 1")
    assert isinstance(worker.result(), ConfigError) and "compare" in str(worker.outcome)


def test_a_node_of_an_attempt_that_is_over_is_told_to_start_again(tmp_path):
    with master(tmp_path, 1, attempt=2):
        late = Background(plan(tmp_path, 1, 2), follow).result()
    assert isinstance(late, RetryLater) and "attempt 2, uses this log path" in str(late)


def test_a_rank_that_died_is_waited_for_by_name_and_its_replacement_is_admitted(tmp_path):
    words = ("cluster.replacement_timeout_s=0.2", "cluster.on_node_loss=wait")
    first = Background(plan(tmp_path, 1, 2, *words), lambda member: None)
    lines = []
    with master(tmp_path, 2, *words, lines=lines) as member:
        first.result()
        until(lambda: member.coordinator.state.missing_ranks, "rank 1 did not leave")
        with pytest.raises(DeadlineError, match="a replacement: waited 0 s for rank 1"):
            member.answer_losses()
        assert any("rank 1 (" in line and "has to take its place" in line for line in lines)
        second = Background(plan(tmp_path, 1, 2, *words), follow)
        until(lambda: not member.coordinator.state.missing_ranks, "rank 1 was not replaced")
        member.answer_losses()
    assert second.result() == []


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_lost_rank_ends_the_run_or_is_done_without_as_configured(tmp_path, policy):
    word = f"cluster.on_node_loss={policy}"
    first = Background(plan(tmp_path, 1, 2, word), lambda member: None)
    with master(tmp_path, 2, word) as member:
        first.result()
        until(lambda: member.coordinator.state.missing_ranks, "rank 1 did not leave")
        if policy == "continue":
            member.answer_losses()
            return
        with pytest.raises(RetryLater, match=r"rank 1 \(.*is gone.*on_node_loss=stop"):
            member.answer_losses()


def test_a_master_that_was_replaced_stops_and_does_not_touch_the_new_ones_record(tmp_path):
    lines = []
    with (
        pytest.raises(RetryLater, match="has taken over this log path"),
        master(tmp_path, 1, lines=lines) as old,
    ):
        with master(tmp_path, 1, attempt=2) as new:
            until(lambda: lines, "the old master goes on")
            until(lambda: read_master(tmp_path)["master"] == new.incarnation, "the new master has vanished")
        old.check()
    assert read_master(tmp_path)["master"] == new.incarnation


# --- what fails ---
@pytest.mark.parametrize("rank", [0, 1])
def test_a_folder_that_takes_no_more_ends_in_one_line_and_a_stop_not_in_a_silent_thread(
    tmp_path, monkeypatch, rank
):
    real = SharedFolder.write_whole

    def wait(member):
        until(lambda: member.view is not None, "no view")
        with pytest.raises(StoreError, match="No space left") as caught:
            member._wait("anything", lambda: None, lambda: "nobody", timeout_s=TIMEOUT_S)
        return caught.value

    is_over = threading.Event()
    nodes = [
        Background(plan(tmp_path, other, 2), lambda member: is_over.wait(TIMEOUT_S))
        for other in (0, 1)
        if other != rank
    ]
    failing = Background(plan(tmp_path, rank, 2), wait)
    until(lambda: len(cluster_threads()) == 4, "not all are there")
    until(lambda: (tmp_path / "log" / MASTER_FILE).exists(), "no master")
    until(lambda: len(read_master(tmp_path)["members"]) == 2, "not both are members")

    def full(self, name, record, *, is_durable=True):
        if record.get("rank", 0) != rank:  # what the master publishes has no rank
            return real(self, name, record, is_durable=is_durable)
        raise StoreError(f"{name}: cannot be written: No space left on device")

    monkeypatch.setattr(SharedFolder, "write_whole", full)
    assert isinstance(failing.result(), StoreError)
    is_over.set()
    said = [line for line in failing.lines if "No space left" in line]
    assert "trying again" in said[0] and len(said) <= 4
    for node in nodes:
        node.result()


def test_a_log_path_that_vanishes_stops_the_node(tmp_path):
    with pytest.raises(StoreError, match="is gone"), master(tmp_path, 1) as member:
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        member._wait("anything", lambda: None, lambda: "nobody", timeout_s=TIMEOUT_S)


@pytest.fixture
def driver():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_node_whose_driver_is_stopped_shows_no_life_and_says_so(tmp_path, driver):
    environ = {"RL_AGENT_DRIVER_PID": str(driver.pid)}
    worker = Background(plan(tmp_path, 1, 2), wait_to_die, environ=environ)
    with master(tmp_path, 2) as member:
        driver.send_signal(signal.SIGSTOP)
        until(lambda: member.members[1].status == "dead", "a stopped node lives on")
        assert any("is stopped" in line for line in worker.lines)
        driver.send_signal(signal.SIGCONT)
        failure = worker.result()
    assert isinstance(failure, RetryLater) and "given this node up" in str(failure)


def test_a_node_whose_driver_is_gone_leaves(tmp_path, driver):
    environ = {"RL_AGENT_DRIVER_PID": str(driver.pid)}
    worker = Background(plan(tmp_path, 1, 2), wait_to_die, environ=environ)
    with master(tmp_path, 2) as member:
        driver.kill()
        driver.wait()
        failure = worker.result()
        assert isinstance(failure, RetryLater) and "is gone" in str(failure)
        until(lambda: member.members[1].status == "left", "it did not say good-bye")
