"""The provider `slurm` asks Slurm and reads its answers; tests/integration/slurm has a real one."""

import pytest

from rl_agent.autoscaler.providers import slurm
from rl_agent.autoscaler.providers.settings import read_settings
from rl_agent.autoscaler.providers.slurm import SlurmProvider, SlurmSettings, jobs_in
from rl_agent.errors import ConfigError
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError

SPOT = EngineKind("spot", 2.5, 0, 4, 60.0)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("12|RUNNING|f-1|spot", MachineState.RUNNING),
        ("12|PENDING|f-1|spot", MachineState.PENDING),
        ("12|CONFIGURING|f-1|spot", MachineState.PENDING),
        ("12|REQUEUED|f-1|spot", MachineState.PENDING),
        ("12|COMPLETING|f-1|spot", MachineState.STOPPING),
        ("12|RUNNING|f-1|spot 1700000000", MachineState.STOPPING),
        ("12|PENDING|f-1|spot 1700000000", MachineState.PENDING),
    ],
)
def test_a_job_s_state_and_comment_say_what_its_machine_does(line, state):
    (job,) = jobs_in([line])
    assert (job.number, job.name, job.kind, job.state) == ("12", "f-1", "spot", state)
    assert (job.told_at is not None) is line.endswith("0")


def test_malformed_job_line_is_an_error_and_foreign_comments_stay_whole():
    with pytest.raises(ProviderError, match="which is not a job"):
        list(jobs_in(["slurm_load_jobs error: Unable to contact slurm controller"]))
    (job,) = jobs_in(["7_3|RUNNING|other|a | b"])
    assert job.kind == "a | b"


async def test_job_after_its_drain_deadline_is_cancelled_in_the_same_second(monkeypatch):
    calls, comment = [], ["spot"]

    async def run(which, words, environ, limit_s):
        calls.append(words)
        if words[0] == "scontrol":
            comment[0] = words[-1].partition("=")[2]
        return f"7|RUNNING|f-1|{comment[0]}\n" if words[0] == "squeue" else ""

    monkeypatch.setattr(slurm, "output_of", run)
    settings = SlurmSettings(manager="http://m:5000", fleet="f", drain_s=0)
    provider = SlurmProvider(settings, clock=lambda: 1700000000.7)
    await provider.stop("f-1")
    await provider.stop("f-1")
    assert calls[-1] == ["scancel", "--quiet", "7"]


def words(**more):
    settings = SlurmSettings(manager="http://m:5000", fleet="f", **more)
    return SlurmProvider(settings)._words("f-1", SPOT)


def test_job_has_the_options_of_its_kind_and_its_worker_the_machine_name():
    command = words(options="--gpus=1", kind_options={"spot": "--partition='a b'"}, worker="--notice auto")
    script = command.index(str(slurm.SCRIPT))
    assert command[:script] == ["--gpus=1", "--partition=a b", "--job-name=f-1", "--comment=spot"]
    assert command[script + 1 :] == [
        *("--notice", "auto", "--manager", "http://m:5000"),
        *("--name", "f-1", "--kind", "spot", "--price", "2.5"),
    ]


def test_a_worker_that_reads_the_manager_from_a_file_gets_no_address():
    assert "--manager" not in words(worker="--manager-file=/shared/pool.url")


def test_a_quote_that_is_not_closed_is_named():
    with pytest.raises(ConfigError, match=r"options: .*No closing quotation"):
        read_settings(SlurmSettings, None, ["options='--gpus"], manager="http://m:1", fleet="f")
