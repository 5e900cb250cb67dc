"""Runs `doctor` in the background of the requests, because a look waits for heartbeats of a living run."""

from dataclasses import dataclass
from pathlib import Path

from rl_agent.cluster.member.look import look_twice
from rl_agent.cluster.protocol.diagnosis import diagnose
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.errors import ConfigError
from rl_agent.page.background_lookup import BackgroundLookup

LOOK_EVERY_S = 10.0
FORGET_S = 60.0
"""A run that had ended may be resumed, and its view is then brought up to date again."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The lines of `doctor`; none of them before the first look is done."""

    seen: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    is_over: bool = False
    """The run has ended, so that nothing will change any more."""
    is_known: bool = False
    has_begun: bool = False
    """There is a run, of which the lines tell."""


def doctor(log_path: Path) -> BackgroundLookup[Diagnosis]:
    """Return what gives the newest diagnosis of a log path, and begins a look if it is old."""

    def try_to_look() -> Diagnosis:
        try:
            return look(log_path)
        except Exception as error:  # files of a foreign version, a folder that is being deleted
            return Diagnosis((f"the run cannot be diagnosed: {error}",), is_known=True)

    return BackgroundLookup(f"doctor {log_path.name}", try_to_look, Diagnosis(), LOOK_EVERY_S, FORGET_S)


def look(log_path: Path) -> Diagnosis:
    """Take one look at a log path; a folder where no run has begun is not a fault."""
    try:
        polls = look_twice(SharedFolder(log_path))
    except ConfigError as error:
        return Diagnosis((str(error),), is_known=True)
    seen, advice = diagnose(polls)
    return Diagnosis(tuple(seen), tuple(advice), polls.view.ended is not None, True, True)
