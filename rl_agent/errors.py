"""Every failure this project raises on purpose, and the exit code each one means.

`ConfigError` and `UsageError` carry one line for a person: the flag, file or key, what is wrong, and
what would be right. `RolloutError`s end one episode and are recorded with it; they never end a run.
"""

EXIT_USAGE = 2
EXIT_RETRY_LATER = 75
EXIT_CONFIG = 78
EXIT_DEADLINE = 124


class HarnessError(Exception):
    """Base of all deliberate failures; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HarnessError):
    """A flag is missing, unknown or contradicts another."""

    exit_code = EXIT_USAGE


class ConfigError(HarnessError):
    """A configuration key, a file or this machine does not allow the run."""

    exit_code = EXIT_CONFIG


class DeadlineError(HarnessError):
    """A wait reached its deadline; the message names what was waited for and since when."""

    exit_code = EXIT_DEADLINE


class RetryLater(HarnessError):
    """Nothing is wrong here, but something outside is not available now."""

    exit_code = EXIT_RETRY_LATER


class EngineDied(HarnessError):
    """The server process ended before it was ready."""


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
    """What an episode holds cannot be written down and read again; it is recorded without that."""


class EnvironmentUnavailable(ConfigError):
    """No environment of a kind can work on this machine: going on would only fail every episode."""


class EngineError(RolloutError):
    """The engine refused or broke off a request after all retries."""


class EnvironmentFailure(RolloutError):
    """An environment raised, or could not be started."""


class JudgeOutage(RolloutError):
    """The model judge gave no usable verdict; the episode has no reward."""


class PromptTooLong(RolloutError):
    """The context left no room for a response."""


def deliberate(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The HarnessError in a group if there is one, else the group.

    A task group wraps what its jobs raise, and many jobs meet a dead engine at once: one line is enough.
    """
    error: BaseException | None = group.subgroup(HarnessError)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or group
