"""The verb `gpu`: how many there are, and the wait for their memory."""

import pytest

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import gpu
from rl_agent.engine.gpus import GpuUse
from rl_agent.errors import DeadlineError, UsageError
from tests.support.rollout_setup import make_plan


@pytest.fixture
def memory(monkeypatch):
    """The megabytes in use at each look, the last of them for good; waits end at once and are counted."""

    class Memory:
        looks: tuple[list[int], ...] = ([20000],)
        waits: tuple[float, ...] = ()

        def look(self):
            now, *later = self.looks
            self.looks = tuple(later) or (now,)
            return [GpuUse(str(index), mib) for index, mib in enumerate(now)]

        def wait(self, seconds):
            self.waits += (seconds,)

    memory = Memory()
    monkeypatch.setattr(gpu, "memory_in_use", memory.look)
    monkeypatch.setattr(gpu, "holders", lambda: ["pid 7 (train.py), 20000 MiB"])
    monkeypatch.setattr(gpu.time, "sleep", memory.wait)
    return memory


def test_the_wait_for_free_memory_ends_with_the_holders_at_the_deadline(memory):
    memory.looks = ([100, 20000],)
    with pytest.raises(DeadlineError, match=r"GPU 1 still uses 20000 MiB; held by pid 7 \(train.py\)"):
        gpu.wait_until_clear(10240, timeout_s=0)


def test_a_holder_outside_this_process_space_is_reported_as_unseen(memory, monkeypatch):
    monkeypatch.setattr(gpu, "holders", list)
    with pytest.raises(DeadlineError, match="held by no process that is visible here"):
        gpu.wait_until_clear(10240, timeout_s=0)


def test_free_memory_is_not_waited_for(memory):
    memory.looks = ([200],)
    gpu.wait_until_clear(10240, timeout_s=0)
    assert not memory.waits


def test_a_waiting_run_reports_once_and_goes_on_at_the_last_free_gpu(memory, capsys):
    memory.looks = ([20000, 20000], [20000, 100], [100, 10240], [100, 10239])
    gpu.wait_until_clear(10240, timeout_s=600)
    assert len(memory.waits) == 3
    log = capsys.readouterr().err
    assert log.startswith("waiting up to 600 s: GPU 0 still uses 20000 MiB, GPU 1 still uses 20000 MiB;")
    assert log.count("waiting") == 1


def test_the_limits_are_the_plans_and_a_wait_without_one_is_refused(memory, tmp_path):
    words = ("engine.memory_clear_mib=30000",)
    make_plan(tmp_path, *words, engine_url="http://127.0.0.1:1").write(tmp_path / "plan.json")
    assert gpu.main(["wait", "--plan", str(tmp_path / "plan.json")]) == 0
    with pytest.raises(UsageError, match="gpu wait needs --plan"):
        gpu.main(["wait"])


def test_a_count_is_a_field_for_bash(monkeypatch):
    monkeypatch.setattr(gpu, "count_gpus", lambda: 4)
    assert gpu.main(["count"]) == VerbResult({"gpus": 4})
