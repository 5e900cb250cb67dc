"""The provider `slurm`: a job of scripts/slurm/join_pool.sbatch for each machine, by the cluster's commands.

A job's name is the machine's. Its comment is the provider's only memory: the engine's kind and, once it was
told to end, when. A job that Slurm preempts goes back into its queue under its name, and is pending again.
"""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from rl_agent.autoscaler.providers.command import output_of
from rl_agent.autoscaler.providers.settings import ProviderSettings
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine

SCRIPT = PROJECT_ROOT / "scripts" / "slurm" / "join_pool.sbatch"
STATES = {
    "RUNNING": MachineState.RUNNING,
    "COMPLETING": MachineState.STOPPING,
    "STAGE_OUT": MachineState.STOPPING,
    "SIGNALING": MachineState.STOPPING,
    "STOPPED": MachineState.STOPPING,
}
"""All others of jobs that squeue lists wait: PENDING, CONFIGURING, REQUEUED, SUSPENDED and so on."""
FIELDS = "%i|%T|%j|%k"


def _is_line_of_words(text: str) -> str:
    shlex.split(text)  # ValueError: a quote is not closed
    return text


Words = Annotated[str, AfterValidator(_is_line_of_words)]
"""Words as a shell splits them."""


OF_EACH_JOB = ("--name", "--kind", "--price")
"""Options of join_pool.sh that `pool scale` adds for each job; without --manager-file, --manager, too."""


class SlurmSettings(ProviderSettings):
    """One job of scripts/slurm/join_pool.sbatch a machine, its name the machine's."""

    options: Words = ""
    """Options of sbatch: `--partition=preemptible --gpus=1 --output=/shared/logs/%x.out`."""
    kind_options: dict[str, Words] = Field(default={})
    """More of them for a kind of engine, by its name."""
    worker: Words = ""
    """Options of join_pool.sh: `--token-file pool.token`; with --manager-file the manager may move."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """A job that is told to end and is still there after so long is cancelled."""
    command_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """A command of Slurm that takes longer is killed."""

    @field_validator("worker")
    @classmethod
    def _leaves_out_what_is_added(cls, text: str) -> str:
        options = [word.partition("=")[0] for word in shlex.split(text)]
        added = OF_EACH_JOB if "--manager-file" in options else (*OF_EACH_JOB, "--manager")
        if twice := [word for word in options if word in added]:
            raise ValueError(f"{twice[0]} is added for each job by `pool scale`, so leave it out")
        return text

    def programs(self) -> dict[str, str]:
        return {f"--provider slurm: {name}": name for name in ("sbatch", "squeue", "scancel", "scontrol")}


@dataclass(frozen=True, slots=True)
class Job:
    """A job as squeue lists it."""

    number: str
    state: MachineState
    name: str
    kind: str
    told_at: float | None
    """The time at which it was told to end, in epoch seconds."""


class SlurmProvider:
    def __init__(self, settings: SlurmSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock

    async def start(self, name: str, kind: EngineKind) -> None:
        if not await self._jobs(name):
            await self._run("start", ["sbatch", "--parsable", *self._words(name, kind)])

    async def stop(self, name: str) -> None:
        """Send TERM to a running job, which drains; cancel it if it is still there after `drain_s`."""
        for job in await self._jobs(name):
            is_over = job.told_at is not None and self._clock() - job.told_at >= self._settings.drain_s
            if job.state is MachineState.PENDING or is_over:
                await self._run("stop", ["scancel", "--quiet", job.number])
            elif job.told_at is None:
                comment = f"comment={job.kind} {int(self._clock())}"  # rounded up, it would lie ahead
                await self._run("stop", ["scontrol", "update", f"jobid={job.number}", comment])
                # for the batch shell, which passes it on and does not queue the job again
                await self._run("stop", ["scancel", "--quiet", "--batch", "--signal=TERM", job.number])

    async def machines(self) -> list[RentedMachine]:
        begin = f"{self._settings.fleet}-"
        jobs = [job for job in await self._jobs() if job.name.startswith(begin)]
        return [RentedMachine(job.name, job.kind, job.state) for job in jobs]

    def _words(self, name: str, kind: EngineKind) -> list[str]:
        settings = self._settings
        options = f"{settings.options} {settings.kind_options.get(kind.name, '')}"
        worker = shlex.split(settings.worker)
        if not any(word.partition("=")[0] == "--manager-file" for word in worker):
            worker += ["--manager", settings.manager]
        worker += ["--name", name, "--kind", kind.name, "--price", f"{kind.price_per_hour:g}"]
        own = [f"--job-name={name}", f"--comment={kind.name}"]
        return [*shlex.split(options), *own, str(SCRIPT), *worker]

    async def _jobs(self, name: str | None = None) -> list[Job]:
        """Return this user's jobs that are not over, all or those of a name."""
        of_name = [] if name is None else [f"--name={name}"]
        output = await self._run("list", ["squeue", "--me", "--noheader", f"--format={FIELDS}", *of_name])
        return list(jobs_in(output.splitlines()))

    async def _run(self, which: str, words: list[str]) -> str:
        return await output_of(which, words, {}, self._settings.command_timeout_s)


def jobs_in(lines: Iterable[str]) -> Iterable[Job]:
    """Read what squeue prints. Raises ProviderError."""
    for line in lines:
        fields = line.strip().split("|", 3)
        if len(fields) != 4:
            raise ProviderError(f"list: squeue printed {line[:100]!r}, which is not a job")
        number, state, name, comment = fields
        kind, _, told_at_s = (
            comment.rpartition(" ") if comment.rpartition(" ")[2].isdigit() else (comment, "", "")
        )
        machine_state = STATES.get(state, MachineState.PENDING)
        if told_at_s and machine_state is MachineState.RUNNING:
            machine_state = MachineState.STOPPING
        yield Job(number, machine_state, name, kind, float(told_at_s) if told_at_s else None)
