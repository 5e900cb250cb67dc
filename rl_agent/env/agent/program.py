"""Runs an agent's program: its standard input is given, its exit status and the end of its output are kept.

Everything below it ends with it, and with the collector (`guard`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rl_agent.env.guarded import Guarded
from rl_agent.http.tokens import secret_variables
from rl_agent.system.terminal import one_line
from rl_agent.types import writable

MAX_OUTPUT_BYTES = 256 << 10
"""The last bytes of each stream that are kept."""
_READ_BYTES = 64 << 10
_LINE_CHARACTERS = 300
_PROXIED = ("NO_PROXY", "no_proxy")


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program."""

    code: int
    """Its exit status; 128 and the number of the signal that ended it."""
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The last line that it wrote as an error, else its last line."""
        return last_line(self.stderr) or last_line(self.stdout) or "it wrote nothing"


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1].strip())[:_LINE_CHARACTERS] if lines else ""


def environment_of(
    environ: Mapping[str, str], changes: Mapping[str, str | None], base_url: str
) -> dict[str, str]:
    """Return a program's variables: the caller's without secrets, `changes`, and the address of its model.

    A change of None passes the caller's variable on, also a secret.
    """
    secret = secret_variables(environ)
    variables = {name: value for name, value in environ.items() if name not in secret}
    for name, value in changes.items():
        if value is not None:
            variables[name] = value
        elif name in environ:
            variables[name] = environ[name]
    variables |= {name: ",".join(filter(None, (variables.get(name), "127.0.0.1"))) for name in _PROXIED}
    variables.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")  # it would send traces to OpenAI
    # The session is a part of the address; clients want some key.
    address = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": "of-the-session"}
    return variables | address


async def run_program(
    command: Sequence[str], *, variables: Mapping[str, str], cwd: str | None, stdin: bytes
) -> ProgramEnd:
    """Run a command to its end; cancelling kills its process group. Raises OSError if it cannot start."""
    guarded = Guarded("rl-agent-program-")
    try:
        process = await asyncio.create_subprocess_exec(
            *guarded.words(*command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=dict(variables),
            start_new_session=True,
        )
    except BaseException:
        await guarded.end()
        raise
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(_feed(process.stdin, stdin), name="program stdin")
            stdout = jobs.create_task(_tail(process.stdout), name="program stdout")
            stderr = jobs.create_task(_tail(process.stderr), name="program stderr")
            code = await process.wait()
    finally:
        await guarded.end()
        await process.wait()
    return ProgramEnd(code, stdout.result(), stderr.result())


async def _feed(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with suppress(OSError):  # it may end, or close its input, without reading
        stdin.write(content)
        await stdin.drain()
    stdin.close()


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read to the end; returns the last part as text."""
    kept = bytearray()
    while piece := await stream.read(_READ_BYTES):
        kept += piece
        if len(kept) > 2 * MAX_OUTPUT_BYTES:
            del kept[:-MAX_OUTPUT_BYTES]
    return writable(bytes(kept[-MAX_OUTPUT_BYTES:]).decode(errors="replace"))
