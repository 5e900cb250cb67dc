"""`pool=elastic` in the loop: a real manager, real workers, simulated engines, stubs of rollouts."""

import signal
import socket
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.client import ask
from tests.shell.conftest import wait_until
from tests.shell.test_stopping import LIMIT_S, interrupt_as_a_terminal_does, seconds_until_gone
from tests.support.certificate import make_certificate
from tests.support.pool_setup import read_journal
from tests.support.ports import quiet_port

BOTH = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "1")
ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")


@pytest.fixture
def pool(tmp_path):
    return ("pool=elastic", f"pool.port={quiet_port()}", f"weights.store={tmp_path / 'shm'}")


def url_file(harness):
    """The file in which workers and `pool scale` find the run's manager."""
    return harness.log / "runs" / "latest" / "pool.url"


def wanted_model(harness, attempt=1):
    """The version that the pool served last."""
    rows = read_journal(harness.log / "runs" / "latest" / f"pool-{attempt}.sqlite", "wanted")
    return next(row["record"] for row in rows if row["kind"] == "model")


def test_one_command_runs_an_iteration_over_a_pool_of_its_own(harness, pool):
    done = harness.run(
        "--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "2", *pool
    )

    assert done.returncode == 0, done.stderr
    commands = ["join-pool", "rollout", "rollout", "prepare-update", "train", "publish"]
    assert harness.verbs == commands * 2
    version = wanted_model(harness)["weight_version"]
    assert version == 1, "the pool was never told of the model that was published"
    assert not url_file(harness).exists(), "machines would wait for a run that is over"
    assert harness.processes() == {}


def test_an_unusable_certificate_is_refused_before_anything_starts(harness, pool):
    certificate, _ = make_certificate(harness.home)
    done = harness.plan(*ROLLOUT, *pool, f"pool.tls_certificate={certificate}", f"pool.tls_key={certificate}")

    assert done.returncode == 78
    assert f"tls_certificate={certificate}" in done.stderr


@pytest.mark.parametrize(
    "is_private",
    [pytest.param(False, marks=pytest.mark.extended), True],
    ids=["plain", "TLS at a free port"],
)
def test_a_killed_manager_comes_back_and_the_engine_stays(harness, pool, is_private):
    words = list(pool)
    if is_private:
        certificate, key = make_certificate(harness.home)
        words[1:2] = ["pool.port=0", f"pool.tls_certificate={certificate}", f"pool.tls_key={key}"]
    done = harness.run(*ROLLOUT, *words, FAKE_ROLLOUT="manager_dies")

    assert done.returncode == 0, done.stderr
    assert harness.verbs == ["join-pool", "rollout", "rollout"]
    assert "the pool's manager died" in done.stderr
    url = (harness.log / "runs" / "latest" / "pool-1.url").read_text()
    assert url.startswith("https://127.0.0.1:" if is_private else "http://127.0.0.1:")
    assert harness.processes() == {}


def test_a_worker_that_is_killed_in_a_rollout_is_started_again(harness, pool):
    done = harness.run(*ROLLOUT, *pool, FAKE_ROLLOUT="engine_dies_unseen")

    assert done.returncode == 0, done.stderr
    assert harness.verbs == ["join-pool", "rollout", "join-pool", "rollout"]
    assert "the pool has no engine" in done.stderr
    assert harness.processes() == {}


def test_an_engine_that_others_start_is_enough_and_outlives_the_run(harness, pool):
    process = harness.start(*ROLLOUT, *pool, "pool.local_engine=false")
    wait_until(lambda: "waiting for an engine to join" in harness.stderr, harness=harness)
    joined = join(harness, pool)
    try:
        assert process.wait(30) == 0, harness.stderr
        assert joined.poll() is None, "the run ended an engine that is not its own"
    finally:
        joined.terminate()
        joined.communicate(timeout=20)
    assert harness.verbs == ["rollout"]


def join(harness, pool):
    """A simulated engine without a worker, registered by hand."""
    engine = [
        sys.executable,
        "tests/support/streaming_engine.py",
        "--port",
        "0",
        "--root",
        str(harness.home / "model"),
    ]
    started = subprocess.Popen(engine, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT)
    url = "http://127.0.0.1:" + started.stdout.readline().strip()
    manager = "http://127.0.0.1:" + pool[1].partition("=")[2]
    ask(manager, "/engines", None, {"name": "mine", "url": url})
    return started


@pytest.mark.parametrize(
    "stop",
    [interrupt_as_a_terminal_does, pytest.param(subprocess.Popen.terminate, marks=pytest.mark.extended)],
)
def test_a_stopped_run_leaves_neither_manager_nor_engine(harness, pool, stop):
    process = harness.start(*ROLLOUT, *pool, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")

    assert list((harness.home / "shm").glob("*/rl-agent-worker-*"))
    stop(process)

    assert seconds_until_gone(harness, process) < LIMIT_S
    assert not list((harness.home / "shm").iterdir())
    assert url_file(harness).exists(), "workers and machines are to wait for --resume"


def test_a_killed_driver_leaves_neither_manager_nor_engine(harness, pool):
    process = harness.start(*ROLLOUT, *pool, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")

    process.send_signal(signal.SIGKILL)

    assert seconds_until_gone(harness, process) < LIMIT_S
    wait_until(lambda: not list((harness.home / "shm").iterdir()), LIMIT_S, harness)


def test_a_port_in_use_is_refused_before_anything_starts(harness, pool):
    with socket.create_server(("127.0.0.1", int(pool[1].partition("=")[2]))):
        done = harness.plan(*ROLLOUT, *pool)

    assert done.returncode == 69
    assert pool[1] in done.stderr and "in use by process" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("pool.host=0.0.0.0",), "pool.host=0.0.0.0: only loopback may be served without a token"),
        (("pool.token_file=/no/such",), "pool.token_file=/no/such: there is no such file"),
        (("--debug-mode",), "with pool=elastic set pool.local_engine=false"),
    ],
)
def test_settings_that_conflict_are_refused_before_anything_starts(harness, pool, words, problem):
    done = harness.plan(*ROLLOUT, *pool, *words)

    assert done.returncode == 78
    assert problem in done.stderr


def test_a_dry_run_shows_the_manager_and_the_worker(harness, pool):
    done = harness.plan(*BOTH, *pool, "--dry-run")

    assert "rl_agent.cli manager --plan PLAN" in done.stdout
    assert "rl_agent.cli join-pool --plan PLAN" in done.stdout


def test_the_engines_of_all_nodes_join_the_masters_pool(harness, pool):
    nodes = ("--num-nodes", "2", "--rank-weights", "1,1", *pool)
    started = [harness.start(*ROLLOUT, *nodes, "--worker", str(rank), FAKE_ROLLOUT="hang") for rank in (0, 1)]
    harness.wait_for_call("rollout", 2)

    engines = ask("http://127.0.0.1:" + pool[1].partition("=")[2], "/status", None)["engines"]
    assert sorted(engine["name"].partition("/")[2] for engine in engines) == ["rank-0", "rank-1"]
    for process in reversed(started):
        process.terminate()
    for process in started:
        process.wait(LIMIT_S)
    wait_until(lambda: not harness.processes(), LIMIT_S, harness)
