"""Every failure this project raises on purpose, and the exit code each one means.

`ConfigError` and `UsageError` carry one line for a person: the flag, file or key, what is wrong, and
what would be right. `RolloutError`s end one episode and are recorded with it; they never end a run.
"""

EXIT_USAGE = 2
EXIT_MACHINE = 69
EXIT_RETRY_LATER = 75
EXIT_CONFIG = 78
EXIT_DEADLINE = 124

EXIT_CODES = {
    0: (
        "done; `--resume` and a queued `--join` end so, too, if the run has done all its iterations",
        "nothing",
    ),
    1: (
        "something failed: damaged data, a full disk, a training, or a bug with a traceback",
        "read the line",
    ),
    EXIT_USAGE: ("a flag is missing, unknown or contradicts another", "correct the command"),
    EXIT_MACHINE: (
        "this machine does not allow the run as it is now: a port or the log path is in use, the disk is"
        " nearly full, no GPU is visible, another engine answers, the hub cannot be reached",
        "free it, or queue the same command for later or for another machine",
    ),
    EXIT_RETRY_LATER: (
        "something outside is not available: the engine, the pool, the membership of a run",
        "the same command with `--resume`",
    ),
    EXIT_CONFIG: (
        "the configuration is wrong, a file that it names, or a change with `--resume`",
        "correct what the line names",
    ),
    EXIT_DEADLINE: (
        "a wait reached its deadline; the line names it",
        "find out why, or raise the deadline; then `--resume`",
    ),
    129: ("the terminal was closed (HUP)", "`--resume`"),
    130: ("Ctrl+C (INT)", "`--resume`"),
    141: (
        "nobody reads what is printed any more, as with `head -1` behind it; the program stops there",
        "nothing",
    ),
    143: ("ended by TERM, as Slurm does", "`--resume`; the job files queue the job again"),
}
"""Meaning of each exit code, and what a person or a script does about it."""


class HarnessError(Exception):
    """Base of all deliberate failures; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HarnessError):
    """A flag is missing, unknown or contradicts another."""

    exit_code = EXIT_USAGE


class ConfigError(HarnessError):
    """A configuration key, a file or this machine does not allow the run."""

    exit_code = EXIT_CONFIG


class TaskError(ConfigError):
    """A task cannot be run as it stands in its file."""

    def __init__(self, message: str, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class MachineError(ConfigError):
    """This machine does not allow the run as it is now; the same command may work later or elsewhere."""

    exit_code = EXIT_MACHINE


class NothingLeft(HarnessError):
    """There is nothing to resume or to join: the run has done all its iterations, which is success."""

    exit_code = 0


class DeadlineError(HarnessError):
    """A wait reached its deadline; the message names what was waited for and since when."""

    exit_code = EXIT_DEADLINE


class RetryLater(HarnessError):
    """Nothing is wrong here, but something outside is not available now."""

    exit_code = EXIT_RETRY_LATER


class NothingCompleted(HarnessError):
    """No episode of an iteration ended with a reward: more iterations would fail in the same way."""


class EngineDied(HarnessError):
    """The server's process ended, or it cannot serve any more."""


class StoreError(HarnessError):
    """A trajectory file cannot be read or written; names the file and line."""


class DamagedLine(StoreError):
    """A line of a trajectory file is not what was written; the other lines of the file can be read."""


class PublishError(HarnessError):
    """A trained model did not pass its checks; the served one was left alone."""


class WeightsError(HarnessError):
    """A weight version cannot be made, sent, fetched or loaded; the one that is served was left alone."""


class RolloutError(HarnessError):
    """Ends one episode, recorded as its `Failure`; never ends the rollout."""


class UnwritableEpisode(RolloutError):
    """An episode holds what cannot be written down and read again; it is recorded without that."""


class EnvironmentUnavailable(MachineError):
    """No environment of a kind can work on this machine: going on would only fail every episode."""


class EngineError(RolloutError):
    """The engine refused or broke off a request after all retries."""


class EnvironmentFailure(RolloutError):
    """An environment raised, or could not be started."""


class EnvironmentRefusal(EnvironmentFailure):
    """An environment cannot run this task, today or tomorrow: the episode is not tried again."""


class EnvironmentLost(EnvironmentFailure):
    """The process or the machine in which an environment lived is gone, or does not answer."""

    def __init__(self, message: str, *, is_suspect: bool = False) -> None:
        super().__init__(message)
        self.is_suspect = is_suspect
        """True if this environment may have ended its process; then few others share the next one."""


class JudgeOutage(RolloutError):
    """The model judge gave no usable verdict; the episode has no reward."""


class PromptTooLong(RolloutError):
    """The context left no room for a response."""


def in_one_line(error: BaseException, most: int = 200) -> str:
    """Return what an error says, as one line; its type if it says nothing."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the type of another library's error and the first line of what it says."""
    return f"{type(error).__name__}: {error}".removesuffix(": ").splitlines()[0][:300]


def deliberate(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the HarnessError in a group if there is one, else the group.

    A task group wraps what its jobs raise, and many jobs meet a dead engine at once: one line is enough.
    """
    error: BaseException | None = group.subgroup(HarnessError)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or group
