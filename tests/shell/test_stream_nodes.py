"""`trainer=grpo` on two nodes in the loop: who starts it, and when it begins anew; the trainer is a stub."""

import json

import pytest

from tests.shell.conftest import wait_until
from tests.shell.test_stream import BOTH
from tests.support.ports import quiet_port

LIMIT_S = 90


@pytest.fixture
def nodes(harness):
    """The words of two nodes; only the first has an engine."""
    words = (*BOTH, "--num-nodes", "2", "--rank-weights", "1,1", "pool=elastic", f"pool.port={quiet_port()}")
    return (*words, "--master"), (*words, "--worker", "1", "pool.local_engine=false")


def starts(harness) -> list[tuple[int, str, str, str]]:
    """Number, nodes, place and meeting point of every trainer that was started, by number."""
    matches = []
    for call in (call.split() for call in harness.calls if call.startswith("stream-train")):
        words = dict(zip(call[1::2], call[2::2], strict=True))
        matches.append((int(words["--start"]), words["--nodes"], words["--node-rank"], words["--master"]))
    return sorted(matches)


@pytest.mark.extended
def test_a_trainer_that_dies_on_one_node_begins_anew_on_both(harness, nodes):
    processes = [harness.start(*words, FAKE_STREAM_TRAIN="die_once") for words in nodes]

    assert [process.wait(LIMIT_S) for process in processes] == [0, 0], harness.stderr
    first, second = starts(harness)[:2], starts(harness)[2:]
    for started in (first, second):
        assert [(nodes, rank) for _, nodes, rank, _ in started] == [("2", "0"), ("2", "1")]
        assert len({(number, master) for number, _, _, master in started}) == 1
    assert second[0][0] > first[0][0]
    assert [call for call in harness.calls if call.startswith("published")][-1] == "published 3"
    assert harness.processes() == {}


@pytest.mark.extended
def test_a_node_that_leaves_is_dropped_and_taken_in_when_it_returns(harness, nodes):
    master, worker = (harness.start(*words, FAKE_ROLLOUT="wait_for_file") for words in nodes)
    harness.wait_for_call("rollout", 2, LIMIT_S)
    worker.terminate()
    assert worker.wait(LIMIT_S) == 143
    wait_until(lambda: members(harness) == 1, LIMIT_S)
    (harness.home / "go-1").touch()
    harness.wait_for_call("stream-train", 3, LIMIT_S)
    worker = harness.start(*nodes[1], FAKE_ROLLOUT="wait_for_file")
    wait_until(lambda: members(harness) == 2, LIMIT_S)
    for iteration in (2, 3):
        (harness.home / f"go-{iteration}").touch()

    assert [process.wait(LIMIT_S) for process in (master, worker)] == [0, 0], harness.stderr
    assert [(nodes, rank) for _, nodes, rank, _ in starts(harness)] == [
        ("2", "0"), ("2", "1"), ("1", "0"), ("2", "0"), ("2", "1"),
    ]  # fmt: skip
    assert [call for call in harness.calls if call.startswith("published")][-1] == "published 3"


def members(harness) -> int:
    view = json.loads((harness.log / "cluster" / "master.json").read_bytes())
    return sum(member["status"] == "alive" for member in view["members"])


def test_a_dry_run_shows_the_part_of_each_node(harness, nodes):
    for rank, words in enumerate(nodes):
        done = harness.plan(*words, "--dry-run")
        assert f"--nodes 2 --node-rank {rank} --master MASTER:PORT" in done.stdout, done.stderr
        assert "--nnodes 2" in done.stdout and "rl_agent.trainer.grpo.worker" in done.stdout
