"""`node`: the Python side of one `run.sh`, from its start to its end.

Bash asks for verbs, one after another, over a pipe; they run in this process, so that what they import is
imported once and not in every phase.

    request   <count>\\0 <word>\\0 …        the verb and its arguments (stdin)
    reply     <status>\\0 <output>\\0       exit status and what the verb printed on stdout (stdout)

The first reply comes without a request, once this node is a member of the run.

What a verb writes to stderr goes to the caller's stderr. TERM ends the verb that is running, and then this
process; so does the end of the requests. Meanwhile this process is the node's member of the run: it shows
that the node lives, and at rank 0 it coordinates the others.
"""

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import BinaryIO

from rl_agent.cli.__main__ import call
from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.cluster.member import Member
from rl_agent.env import verifier

SUMMARY = "answer the verbs of one run.sh over a pipe (for run.sh)"
EXAMPLE = """examples:
  printf '%s\\0' 3 next --plan runs/r1/plan.json | python -m rl_agent.cli node --plan runs/r1/plan.json
"""

_KEPT_VERIFIERS = 2
"""Of a kind, between rollouts; about 100 MB each."""

Call = Callable[[list[str], Member], int]


def main(argv: list[str], call: Call = call) -> int:
    plan = read_plan(plan_parser("node", SUMMARY, EXAMPLE).parse_args(argv).plan)
    verifier.keep_workers(_KEPT_VERIFIERS)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever else writes to stdout, here or in a child, must not be taken for a reply.
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _leave)
    with Member.enter(plan, os.environ, is_joiner=plan.command.join) as member:
        try:
            send_reply(replies, 0, "")
            while words := read_request(requests):
                send_reply(replies, *answer(words, call, member))
        except Stopped:
            member.end(_LEFT, "was stopped")
            raise
    return 0


def read_request(requests: BinaryIO) -> list[str]:
    """The words of the next request; none at the end."""
    count = _read_word(requests)
    return [os.fsdecode(_read_word(requests)) for _ in range(int(count or 0))]


def _read_word(requests: BinaryIO) -> bytes:
    word = bytearray()
    while (byte := requests.read(1)) not in (b"", b"\0"):
        word += byte
    return bytes(word)


def send_reply(replies: BinaryIO, status: int, output: str) -> None:
    replies.write(b"%d\0%s\0" % (status, output.rstrip("\n").encode(errors="surrogateescape")))
    replies.flush()


def answer(words: list[str], call: Call, member: Member) -> tuple[int, str]:
    """Run one verb: its exit status, and what it printed. A bug in it ends the verb, not this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            status = call(words, member)
        except SystemExit as error:  # argparse ends this way
            if isinstance(error, Stopped):
                raise
            status = error.code if isinstance(error.code, int) else 1
        except Exception:
            traceback.print_exc()
            status = 1
    sys.stderr.flush()
    return status, output.getvalue()


_LEFT = 128 + signal.SIGTERM


def _leave(*_: object) -> None:
    # run.sh and Slurm may each send one; a second must not cut the good-bye short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


class Stopped(SystemExit):
    """This process was asked to end in the middle of the run."""

    def __init__(self) -> None:
        super().__init__(_LEFT)
