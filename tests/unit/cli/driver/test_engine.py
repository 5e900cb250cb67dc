"""The verb `engine check` tells run.sh about the server at the engine's address."""

import os

import pytest

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import _wait_lines, engine
from rl_agent.engine.server import Answer, Probe
from rl_agent.errors import RetryLater
from rl_agent.monitor.progress import LINE_CHARACTERS
from tests.support.rollout_setup import make_plan


@pytest.fixture
def run(tmp_path):
    """Return a function that calls the verb for a plan, with the place of an engine's log."""
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=tmp_path)
    version = plan.paths.version_dir(3)
    version.mkdir(parents=True)
    plan.paths.model_link.symlink_to(version)
    plan.write(tmp_path / "plan.json")
    return lambda *words, **more: engine.main(["--plan", str(tmp_path / "plan.json"), *words], **more)


def ready(log):
    return "ready", "--pid", str(os.getpid()), "--log", str(log)


@pytest.fixture
def starting(monkeypatch):
    """An engine that answers at the second look, and a line for each look."""
    answers = iter([Probe(Answer.NOTHING, "no engine"), Probe(Answer.WANTED, "there")])
    monkeypatch.setattr(engine, "_probe", lambda plan: next(answers))
    monkeypatch.setattr(_wait_lines, "next_line_s", lambda waited_s: waited_s)


@pytest.mark.parametrize(
    ("words", "answer"), [((), "wanted"), (("--version", "3"), "wanted"), (("--version", "4"), "old-version")]
)
def test_a_server_is_old_if_the_shared_folder_shows_the_model_late(run, monkeypatch, capsys, words, answer):
    wanted = Probe(Answer.WANTED, "serves version 3")
    monkeypatch.setattr(engine, "probe", lambda config, environ, timeout_s: wanted)
    assert run("check", *words) == VerbResult({"answer": answer})
    is_late = "leads to weight version 3 here, 4 is wanted" in capsys.readouterr().err
    assert is_late == (answer == "old-version")


class Lost:
    """A node whose master is dead."""

    def set_doing(self, text):
        pass

    def check(self) -> None:
        raise RetryLater("the master, rank 0 (node-0), has been silent for 31 s")


def test_a_node_that_has_lost_its_run_waits_for_no_engine(run, tmp_path):
    with pytest.raises(RetryLater, match="silent for 31 s"):
        run(*ready(tmp_path / "log"), member=Lost())


def test_a_wait_for_another_machines_engine_reports_without_a_log(run, starting, tmp_path, capsys):
    assert run(*ready(tmp_path)) == 0
    log = capsys.readouterr().err
    assert log.startswith("engine: starting  ") and "its log" not in log


@pytest.mark.parametrize(
    ("log", "stage"),
    [
        ("Initializing a V1 LLM engine (v0.28.0) with config: model='m'", "starting its workers"),
        ("Starting\tto load model m...", "loading weights"),
        ("Starting to load model m...\nLoading weights took 0.01 seconds", "making room for the KV cache"),
        ("Enforce eager set, disabling torch.compile and CUDAGraphs.", "starting"),
    ],
)
def test_a_wait_for_an_engine_names_what_the_engine_does(run, starting, tmp_path, capsys, log, stage):
    stamp = "(EngineCore_0 pid=71) INFO 11-25 08:59:34 [gpu_model_runner.py:2338] "
    (tmp_path / "engine.log").write_text(f"{stamp}{log} " + "x" * 200)
    assert run(*ready(tmp_path / "engine.log")) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith(f"engine: {stage}  0 of ") and "; its log ends: " in line
    assert len(line) == LINE_CHARACTERS and "\t" not in line
