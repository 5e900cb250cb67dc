"""Settings of each provider, checked once, before it is asked anything.

They are the KEY=VALUE words of `pool scale`, over those of a YAML file (`--provider-file`). Apart from the
providers themselves, for some of those work in an environment without pydantic.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from rl_agent.config.overrides.keys import did_you_mean
from rl_agent.errors import ConfigError, UsageError
from rl_agent.system.terminal import one_line


class ProviderSettings(BaseModel):
    """The settings of every provider; the verb fills them in."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    manager: str
    """The manager's address as its engines reach it."""
    fleet: str
    """Begins the name of each machine of this reconciler: FLEET-NUMBER."""

    def programs(self) -> dict[str, str]:
        """Return the programs that this machine must have, by what names them."""
        return {}


FIELDS = ("name", "kind", "price", "manager", "fleet")
"""The names that a template of the provider `command` may have in braces."""
FIELDS_OF = {"stop": ("name", "manager", "fleet"), "list": ("manager", "fleet")}
"""The names in its templates that belong to no kind, or to no machine."""
_FIELD = re.compile(r"(?<!\$)\{([a-z_]+)\}")


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


class RayResources(BaseModel):
    """The resources that an actor of one kind takes of its node."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_gpus: float = Field(default=0.0, ge=0)
    num_cpus: float = Field(default=0.0, ge=0)
    resources: dict[str, Annotated[float, Field(gt=0)]] = {}
    """The cluster's own, such as a type of accelerator."""


class RaySettings(ProviderSettings):
    """A Ray cluster, and what to run on it."""

    worker: str
    """The command line of an engine's worker (join_pool.sh) as it works on every node, with {name} in it."""
    address: str = "auto"
    """auto: the cluster of this machine; HOST:PORT on a node of it; ray://HOST:10001 from outside of it."""
    namespace: str = "rl-agent"
    resources: dict[str, RayResources] = {}
    """The resources by the name of the kind; without an entry an engine takes one GPU."""
    drain_s: float = Field(default=60.0, gt=0, le=86_400)
    """A worker that has not ended so long after it was asked to leave, or its actor died, is killed."""
    log: str = "/tmp/{name}.log"  # noqa: S108 - on each node
    """File on its node for the worker's output."""

    @field_validator("address")
    @classmethod
    def _is_of_a_cluster(cls, text: str) -> str:
        if text != "auto" and not re.fullmatch(r"(ray://)?[^/\s]+:[0-9]+", text):  # `local` would start one
            raise ValueError("expected auto, HOST:PORT or ray://HOST:PORT")
        return text

    @field_validator("worker")
    @classmethod
    def _names_the_machine(cls, text: str) -> str:
        if unknown := [name for name in _FIELD.findall(text) if name not in FIELDS]:
            raise ValueError(f"{{{unknown[0]}}} is not a field; there are {', '.join(FIELDS)}")
        if "{name}" not in text:
            raise ValueError("{name} is missing: under it the engine joins the pool")
        return text


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
    kind_options: dict[str, Words] = {}
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


Settings = TypeVar("Settings", bound=ProviderSettings)
OF_THE_VERB = frozenset(ProviderSettings.model_fields)


def read_settings(model: type[Settings], file: Path | None, words: Sequence[str], **own: str) -> Settings:
    """Return the settings of a provider. Raises UsageError, or ConfigError for the file or a value."""
    settings = {**_of_file(file), **_of_words(words)}
    if taken := sorted(OF_THE_VERB & settings.keys()):
        raise UsageError(f"{taken[0]}: is an option of `pool scale`, not a setting of its provider")
    try:
        return model.model_validate({**settings, **own})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        keys = sorted(model.model_fields.keys() - OF_THE_VERB)
        raise ConfigError(f"{one_line(key)}: {_plain(first, keys)}") from error


def _plain(problem: Any, keys: Sequence[str]) -> str:
    """Say in plain words what is wrong with a setting, and what would be right."""
    names = f"the provider's settings are {', '.join(keys)}"
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        is_inner = len(problem["loc"]) > 1
        return f"there is no such setting{did_you_mean(key, keys)}" + ("" if is_inner else f"; {names}")
    if problem["type"] == "missing":
        return f"is missing; {names}"
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def _of_words(words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    for key, sign, _ in pairs:
        if not sign or not key:
            raise UsageError(f"{key!r}: expected KEY=VALUE, a setting of the provider")
    return {key: value for key, _, value in pairs}


def _of_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"--provider-file {path} cannot be read: {reason}") from error
    if not isinstance(settings, Mapping):
        raise ConfigError(f"--provider-file {path}: expected KEY: VALUE lines, the provider's settings")
    return dict(settings)
