"""The verb `node` is the Python side of one `run.sh`, from its start to its end.

Bash asks for verbs, one after another, over a pipe; they run in this process, so that what they import is
imported once and not in every phase.

    request   <count>\\0 <word>\\0 …                   the verb and its arguments (stdin)
    reply     <status>\\0 <name>=<value>\\0 … \\0      its exit status and its record (stdout)

The first reply comes without a request, once this node is a member of the run.

What a verb prints, on stdout or stderr, goes to the caller's stderr. TERM ends the verb that is running, and
then this process; so does the end of the requests. Meanwhile this process is the node's member of the run: it
shows that the node lives, and at rank 0 it coordinates the others.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver.rollout import next_of
from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.env import verifier
from rl_agent.env.remote.environments import Environments
from rl_agent.env.remote.kept_workers import keeping_workers
from rl_agent.errors import HarnessError
from rl_agent.rollout.loop import RolloutLoop
from rl_agent.rollout.sample import Assignment, sample_of
from rl_agent.system.files import allow_open_files
from rl_agent.system.processes import pid_space
from rl_agent.types import MAX_MESSAGE, Split

SUMMARY = "answer the verbs of one run.sh over a pipe (for run.sh)"
EXAMPLE = """examples:
  printf '%s\\0' 3 next --plan runs/r1/plan.json | rl-agent node --plan runs/r1/plan.json
"""

_KEPT_VERIFIERS = 2
"""The number of verifiers of a kind that live on between rollouts; each takes about 100 MB."""

Call = Callable[[list[str], Member, RolloutLoop], VerbResult]


def main(argv: list[str], call: Call) -> int:
    plan = read_plan(plan_parser("node", SUMMARY, EXAMPLE).parse_args(argv).plan)
    allow_open_files()  # a rollout has a connection for each request at an engine
    verifier.keep_workers(_KEPT_VERIFIERS)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever else writes to stdout, here or in a child, must not be taken for a reply.
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _leave)
    exit_status = exit_status_file(plan)
    exit_status.unlink(missing_ok=True)
    problems = Problems()
    with (
        keeping_workers(),
        Member.enter(plan, os.environ, is_joiner=plan.command.join) as member,
        RolloutLoop(next_of) as rollouts,
    ):
        try:
            is_heard = send_reply(replies, VerbResult())
            while is_heard and (words := read_request(requests)):
                record = answer(words, call, member, rollouts)
                problems.note(words[0], record)
                is_heard = send_reply(replies, record)
                if is_heard and "phase" in record.fields and not rollouts.has_next:
                    start_workers(plan, record)
            # A run.sh that comes to its end says so before; the others must not take a killed one's for that.
            member.end(_KILLED, "its run.sh was killed")
        except Stopped:
            member.end(*why_stopped(exit_status, problems))
            raise
    return 0


def start_workers(plan: Plan, record: VerbResult) -> None:
    """Start the environment workers of the next phase while the engine loads, unless they live on.

    What is wrong with tasks or environments is reported by the rollout, not here.
    """
    phase, iteration = record.fields["phase"], int(record.fields["iteration"])
    if phase not in ("rollout", "evaluate"):
        return
    split: Split = "train" if phase == "rollout" else "test"
    with suppress(HarnessError, OSError):
        specs = sample_of(Assignment(plan, split, iteration, resume=False)).specs
        kinds = {spec.task.env for spec in specs}
        if count := Environments(plan.config.env_config).start_workers(kinds, len(specs)):
            print(f"{count} environment workers start while the engine loads", file=sys.stderr)


def exit_status_file(plan: Plan) -> Path:
    """Return where run.sh writes the status with which it ends, before it stops this process."""
    folder = plan.groups_dir(pid_space())
    return folder.with_name(f"{folder.name}.exit-status")


class Problems:
    """Remembers the last failure of each verb until the verb succeeds again, for then it was repaired."""

    def __init__(self) -> None:
        self._last: dict[str, VerbResult] = {}

    def note(self, verb: str, record: VerbResult) -> None:
        """Note the result of a verb."""
        self._last.pop(verb, None)
        if record.problem:
            self._last[verb] = record

    def with_status(self, status: int) -> str:
        """Return the line of the last failure with an exit status; empty if there was none."""
        return next((last.problem for last in reversed(self._last.values()) if last.status == status), "")


def why_stopped(exit_status: Path, problems: Problems) -> tuple[int, str]:
    """Return the exit status of run.sh and the reason in words; TERM's if run.sh did not name one."""
    try:
        status = int(exit_status.read_text())
    except (OSError, ValueError):
        status = _LEFT
    if status in _INTERRUPTED:
        return status, _INTERRUPTED[status]
    problem = " ".join(problems.with_status(status).split())
    return status, problem[:MAX_MESSAGE] or f"failed with status {status}"


def read_request(requests: BinaryIO) -> list[str]:
    """Return the words of the next request; none at the end."""
    count = _read_word(requests)
    return [os.fsdecode(_read_word(requests)) for _ in range(int(count or 0))]


def _read_word(requests: BinaryIO) -> bytes:
    word = bytearray()
    while (byte := requests.read(1)) not in (b"", b"\0"):
        word += byte
    return bytes(word)


def send_reply(replies: BinaryIO, record: VerbResult) -> bool:
    """Send a record; returns False if run.sh was killed. No field is empty, and an empty word ends it."""
    words = [str(record.status), *record.words(), ""]
    replies.write("".join(f"{word}\0" for word in words).encode(errors="surrogateescape"))
    try:
        replies.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):  # or it would be tried again at the end of the process
            replies.close()
        return False
    return True


def answer(words: list[str], call: Call, member: Member, rollouts: RolloutLoop) -> VerbResult:
    """Run one verb. A bug in it ends the verb, not this process."""
    try:
        return call(words, member, rollouts)
    except SystemExit as error:  # argparse ends this way
        if isinstance(error, Stopped):
            raise
        return VerbResult(status=error.code if isinstance(error.code, int) else 1)
    except Exception:
        traceback.print_exc()
        return VerbResult(status=1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


_LEFT = 128 + signal.SIGTERM
_KILLED = 128 + signal.SIGKILL
_INTERRUPTED = {
    0: "done",
    128 + signal.SIGHUP: "the terminal was closed",
    128 + signal.SIGINT: "interrupted by Ctrl+C",
    _LEFT: "stopped by TERM",
}


def _leave(*_: object) -> None:
    # run.sh and Slurm may each send one; a second must not cut the good-bye short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


class Stopped(SystemExit):
    """This process was asked to end in the middle of the run."""

    def __init__(self) -> None:
        super().__init__(_LEFT)
