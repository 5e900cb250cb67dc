"""The provider `command`: a command line each for start, stop and list, such as those of a cloud's CLI.

A line is split into words first and its fields are put in after, so no name becomes more than one word. With
`shell` bash gets the line, its fields quoted. The environment is this process's, with the fields as
RL_AGENT_NAME, RL_AGENT_KIND and so on; the pool's token is in that of start alone. Output goes to files: what
a command leaves running holds no pipe.
"""

import asyncio
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence, Set
from typing import IO

from pydantic import Field, ValidationInfo, field_validator

from rl_agent.autoscaler.providers.settings import ProviderSettings
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine
from rl_agent.system.owned import end_owned, start_owned

SECRETS = frozenset({"RL_AGENT_POOL_TOKEN"})
FIELDS = ("name", "kind", "price", "manager", "fleet")
"""The names that a template of the provider `command` may have in braces."""
FIELDS_OF = {"stop": ("name", "manager", "fleet"), "list": ("manager", "fleet")}
"""The names in its templates that belong to no kind, or to no machine."""
_FIELD = re.compile(r"(?<!\$)\{([a-z_]+)\}")
PENDING = frozenset(
    {"pending", "provisioning", "staging", "starting", "creating", "queued", "configuring", "init"}
)
STOPPING = frozenset(
    {"stopping", "shutting-down", "suspending", "stopped", "suspended", "deleting", "completing"}
)
"""Words for what ends or rests and still costs something."""
GONE = frozenset({"terminated", "deleted", "gone"})


class CommandSettings(ProviderSettings):
    """Command lines for start, stop and list, with {name}, {kind}, {price}, {manager} and {fleet} in them."""

    start: str
    """Asks for a machine that joins the pool under {name}; it returns once that is asked."""
    stop: str
    """Ends the machine {name}; exit status 0 also where there is none."""
    list: str
    """Prints the machines: NAME [STATE [KIND]] lines, or JSON of names or of objects with these keys."""
    shell: bool = False
    """Give the lines to bash, fields quoted; without, they are split into words and started as they are."""
    command_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """A command that takes longer is killed, with all that it started in its process group."""

    def programs(self) -> dict[str, str]:
        if self.shell:  # its first word may be one of bash's own, or a variable
            return {"shell": "bash"}
        first = {key: shlex.split(getattr(self, key))[0] for key in ("start", "stop", "list")}
        return {key: word for key, word in first.items() if not _FIELD.search(word)}

    @field_validator("start", "stop", "list")
    @classmethod
    def _is_template(cls, text: str, info: ValidationInfo) -> str:
        fields = FIELDS_OF.get(info.field_name or "", FIELDS)
        if unknown := [name for name in _FIELD.findall(text) if name not in fields]:
            raise ValueError(f"{{{unknown[0]}}} is not a field; there are {', '.join(fields)}")
        if info.field_name != "list" and "name" not in _FIELD.findall(text):  # ${name} is a variable of bash
            raise ValueError("{name} is missing: it says which machine")
        if not shlex.split(text) or "\0" in text:
            raise ValueError("expected a command line")
        return text


class CommandProvider:
    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings

    async def start(self, name: str, kind: EngineKind) -> None:
        await self._run("start", {"name": name, "kind": kind.name, "price": f"{kind.price_per_hour:g}"})

    async def stop(self, name: str) -> None:
        await self._run("stop", {"name": name})

    async def machines(self) -> list[RentedMachine]:
        return machines_in(await self._run("list", {}))

    async def _run(self, which: str, fields: Mapping[str, str]) -> str:
        """Run one of the command lines and return its output. Raises ProviderError."""
        settings = self._settings
        fields = {"manager": settings.manager, "fleet": settings.fleet, **fields}
        words = words_of(getattr(settings, which), fields, is_shell=settings.shell)
        environ = {f"RL_AGENT_{name.upper()}": value for name, value in fields.items()}
        kept = frozenset() if which == "start" else SECRETS
        return await output_of(which, words, environ, settings.command_timeout_s, without=kept)


async def output_of(
    which: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    limit_s: float,
    *,
    without: Set[str] = frozenset(),
) -> str:
    """Run a command to its end and return its output. Raises ProviderError, which begins with `which`.

    It gets this process's environment, `environ` added and the names `without` left out.
    """
    environ = {name: value for name, value in os.environ.items() if name not in without} | dict(environ)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        status = await _status_of(which, words, environ, limit_s, output, errors)
        if status != 0:
            text = _text(errors).strip() or _text(output).strip() or "it printed nothing"
            last = text.splitlines()[-1]
            raise ProviderError(_one_line(f"{which}: {words[0]}: exit status {status}: {last}"))
        return _text(output)


async def _status_of(
    which: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    limit_s: float,
    output: IO[bytes],
    errors: IO[bytes],
) -> int:
    try:
        process = await start_owned(
            *words, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=errors
        )
    except (OSError, ValueError) as error:
        raise ProviderError(f"{which}: {words[0]}: {error}") from error
    try:
        async with asyncio.timeout(limit_s):
            return await process.wait()
    except TimeoutError as error:
        raise ProviderError(f"{which}: {words[0]}: no end after {limit_s:g} s") from error
    finally:
        if process.returncode is None:
            await end_owned(process, 0.0)


def words_of(template: str, fields: Mapping[str, str], *, is_shell: bool) -> list[str]:
    """Return the command of a template; a field in it is never more than a part of one word."""
    if is_shell:
        line = _FIELD.sub(lambda match: shlex.quote(_field(fields, match)), template)
        return ["bash", "-c", line]
    return [_FIELD.sub(lambda match: _field(fields, match), word) for word in shlex.split(template)]


def _field(fields: Mapping[str, str], match: re.Match[str]) -> str:
    if match[1] not in fields:
        raise ProviderError(f"{match[0]} is not known to this command; known are {', '.join(sorted(fields))}")
    return fields[match[1]]


def machines_in(output: str) -> list[RentedMachine]:
    """Read a list of machines: `NAME [STATE [KIND]]` lines, or JSON. Raises ProviderError."""
    if output.lstrip().startswith(("[", "{")):
        entries = _entries_of_json(output)
    else:
        entries = [line.split() for line in output.splitlines() if line.strip()]
    machines = []
    for name, state, kind in ((*entry, "", "")[:3] for entry in entries):
        if state.lower() not in GONE:
            machines.append(RentedMachine(name, kind, _state(state)))
    return machines


def _entries_of_json(output: str) -> list[list[str]]:
    try:
        listed = json.loads(output)
    except ValueError as error:
        raise ProviderError(f"list: this is not JSON: {_one_line(output[:100])}") from error
    entries = []
    for entry in listed if isinstance(listed, list) else [None]:
        match entry:
            case str():
                entries.append([entry])
            case {"name": str(name), **rest}:
                entries.append([name, str(rest.get("state") or ""), str(rest.get("kind") or "")])
            case _:
                raise ProviderError(
                    "list: expected a JSON list of names, or of objects with name, state and kind"
                )
    return entries


def _state(word: str) -> MachineState:
    word = word.lower()
    if word in PENDING:
        return MachineState.PENDING
    return MachineState.STOPPING if word in STOPPING else MachineState.RUNNING


def _one_line(text: str) -> str:
    """Return a text without line breaks, in at most 500 characters."""
    return " ".join(text.split())[:500]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
