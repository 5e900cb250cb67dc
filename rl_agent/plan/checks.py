"""Everything about this machine that would make a run fail later, found before anything starts.

Each check reads, changes nothing, and raises `ConfigError` with one line; `check_machine` runs them in the
order in which a person would want to hear about them.
"""

import errno
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rl_agent.cluster.shared_fs import run_lock
from rl_agent.config.plan import Command, Config
from rl_agent.config.sections.env import EnvConfig
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.engine.gpus import smallest_memory_gib
from rl_agent.engine.served import listeners
from rl_agent.engine.server import Answer, data_parallel_size, probe
from rl_agent.engine.sharing import check_sharing, engine_gpu_count, trains_on_cpu
from rl_agent.errors import ConfigError, MachineError
from rl_agent.http.tokens import host_and_port, is_loopback
from rl_agent.judge.judge_checks import check_judge
from rl_agent.judge.rubric import check_criteria
from rl_agent.plan import disk
from rl_agent.plan.caller import AGENT
from rl_agent.plan.context import check_context
from rl_agent.plan.first_turn import check_first_turns
from rl_agent.plan.gpu_memory import check_gpu_memory
from rl_agent.plan.hub import FoundModel, find_model
from rl_agent.plan.inert import of_tasks
from rl_agent.plan.model import check_chat, check_model, check_serving, obstacle_of_images
from rl_agent.plan.runs import Leftover, find_leftovers
from rl_agent.pool.policy_class import find_policy
from rl_agent.pool.settings import check_settings
from rl_agent.served_model.verify import check_served
from rl_agent.tasks.load import load_tasks
from rl_agent.trainer.llamafactory.render import check_extra_args, deepspeed_file
from rl_agent.types import Split, Task

SPLITS: tuple[Split, ...] = ("train", "test")
INSTEAD_OF_THE_PORT = "choose another port, or use its engine with --debug-mode"
OR_ANY_PORT = "or choose another port; 0 takes any free one"


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that the checks found on the way."""

    model: FoundModel
    num_tasks: Mapping[Split, int]
    """The number of tasks that an iteration samples; a task may be sampled repeatedly."""
    num_in_files: Mapping[Split, int]
    disk: disk.DiskEstimate
    leftovers: tuple[Leftover, ...]
    notes: tuple[str, ...]
    """Facts that cannot be known yet."""


def check_machine(
    config: Config,
    command: Command,
    task_files: Mapping[Split, Path],
    *,
    num_gpus: int,
    cache: Path,
    environ: Mapping[str, str],
    plays: bool,
) -> Machine:
    """Check all that the run needs here. Raises `ConfigError` for the first thing that does not allow it.

    With `plays` an episode of each kind of environment is played, too.
    """
    check_data_path(config.data_path)
    check_log_path(config.log_path)
    if command.rank == 0 and not command.join:  # others may see the master's link late
        check_served(config.paths)
        run_lock.check_free(config.log_path, config.cluster.lease_s)
    check_programs(config, command)
    check_gpus(config, command, num_gpus)
    check_weights(config, command, num_gpus)
    check_trainer(config, command, num_gpus)
    check_context(config, command)
    check_judge(config, command, environ)
    model = find_model(config.model.base_model, cache, environ)
    if starts_engine(config, command):
        check_serving(config, model, environ)
    device_gib = smallest_memory_gib(environ) if num_gpus else 0.0
    notes = (*check_model(config, command, model), *check_chat(config, command, model))
    notes += check_gpu_memory(config, command, model, num_gpus=num_gpus, device_gib=device_gib)
    leftovers = find_leftovers(config.paths)
    ours = {pid for left in leftovers for pid in left.pids}
    check_engine(config, command, ours, environ)
    tasks = {split: load_tasks(path, config.env_config) for split, path in task_files.items()}
    num_tasks = check_tasks(config, tasks)
    most = sum(num_tasks.values()) + num_tasks.get("train", 0) * (config.num_gen_batches - 1)
    space = disk.estimate(config, command, most, model.size_bytes)
    disk.check(space)
    every = [task for part in tasks.values() for task in part]
    check_agents(config.env_config, {task.env for task in every}, ours)
    no_images = obstacle_of_images(config, command, model)
    notes += of_tasks(config, command, every)
    notes += check_first_turns(config, every, model, plays=plays, no_images=no_images)
    in_files = {split: len(part) for split, part in tasks.items()}
    return Machine(model, num_tasks, in_files, space, tuple(leftovers), notes)


def splits_of(command: Command) -> tuple[Split, ...]:
    """Return the splits whose tasks will be run."""
    if command.rl_phase == "update":
        return ()
    if command.rollout_split is None:  # `both`, or a node that joins such a run
        return ("train", "test")
    return ("train",) if command.rollout_split == "train-only" else ("test",)


def check_data_path(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"--data-path {path}: no such folder")
    if not path.is_dir():
        raise ConfigError(f"--data-path {path}: not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"--data-path {path}: cannot be read by this user")


def check_log_path(path: Path) -> None:
    """It may be missing, but it must be possible to make it and to write in it."""
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            raise ConfigError(f"--log-path {path}: {part} is a broken link, or part of a circle of links")
    parent = disk.nearest_existing(path)
    if not parent.is_dir():
        raise ConfigError(f"--log-path {path}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--log-path {path}: {parent} cannot be written by this user")


def check_programs(config: Config, command: Command) -> None:
    needs = {
        "vllm": starts_engine(config, command),
        "llamafactory": command.rl_phase != "rollout" and config.trainer.kind == "llamafactory",
    }
    for package, is_needed in needs.items():
        if is_needed and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"--rl-phase {command.rl_phase} needs {package}, which this Python lacks;"
                " scripts/quickstart.sh or pip install 'rl-agent[gpu]' installs it;"
                " RL_AGENT_PYTHON names another Python"
            )


def starts_engine(config: Config, command: Command) -> bool:
    """Return whether this node runs an engine of its own."""
    is_elsewhere = config.is_pooled and not config.pool.local_engine
    return command.rl_phase != "update" and not command.debug_mode and not is_elsewhere


def check_gpus(config: Config, command: Command, num_gpus: int) -> None:
    engine = config.engine
    if not starts_engine(config, command):
        return
    if engine.device == "cpu":
        replicas, cores = data_parallel_size(config, 0), os.cpu_count() or 1
        if replicas * engine.tensor_parallel_size > cores:
            raise ConfigError(
                f"engine.tensor_parallel_size={engine.tensor_parallel_size} times"
                f" engine.data_parallel_size={replicas}: {num_gpus} GPUs are visible, and"
                f" engine.device=cpu runs at most as many parts as the {cores} cores"
            )
        return
    if num_gpus == 0:
        trainer = f"{config.trainer.kind}_cpu"
        raise MachineError(f"engine.device=gpu: no GPU is visible; choose engine=cpu trainer={trainer}")
    replicas, available = data_parallel_size(config, num_gpus), engine_gpu_count(config, num_gpus)
    if replicas * engine.tensor_parallel_size > available:
        raise ConfigError(
            f"engine.tensor_parallel_size={engine.tensor_parallel_size} times"
            f" engine.data_parallel_size={replicas} needs {replicas * engine.tensor_parallel_size} GPUs,"
            f" {available} are there for the engine"
        )


def check_weights(config: Config, command: Command, num_gpus: int) -> None:
    """Refuse an engine that takes weights while it runs, where it shares GPUs or others can reach it."""
    if config.weights.is_inplace and config.trainer.kind != "llamafactory":
        raise ConfigError(
            f"weights=inplace: trainer.kind={config.trainer.kind} has its own way; leave it out"
        )
    names = {name.strip("-").replace("_", "-"): name for name in config.engine.extra_args}
    has_adapters = config.publishes_adapters and "enable-lora" in names
    if config.loads_weights and "quantization" in names and not has_adapters:
        raise ConfigError(
            f"engine.extra_args.{names['quantization']}: vLLM may load weights wrongly into a quantized"
            " engine that runs; leave it out, use trainer=llamafactory with weights=restart, or give it"
            " adapters alone (trainer.lora.publish=adapter, engine.extra_args.enable-lora=true)"
        )
    if config.weights.transport == "nccl" and config.is_pooled and num_gpus == 0:
        raise ConfigError(
            "weights.transport=nccl moves weights between GPUs, and none is visible here; use tcp, the"
            " default"
        )
    if command.rl_phase == "both":
        check_sharing(config, num_gpus)
    if not config.weights.is_inplace or command.rl_phase == "update":
        return
    host = urlsplit(config.engine.base_url).hostname or ""
    if not is_loopback(host) or not is_loopback(config.engine.host):
        raise ConfigError(
            f"weights=inplace: the engine at {config.engine.base_url} would obey anybody, because its"
            " control routes require no key; let it listen only on engine.host=127.0.0.1"
        )


def check_trainer(config: Config, command: Command, num_gpus: int = 0) -> None:
    if not isinstance(config.trainer, TrainerConfig):
        check_streaming(config, command, num_gpus)
        return
    check_extra_args(config.trainer)
    if command.rl_phase == "rollout":
        return
    check_processes(config, num_gpus)
    deepspeed_file(config.trainer.deepspeed)


def check_streaming(config: Config, command: Command, num_gpus: int) -> None:
    """Refuse what `trainer=grpo` cannot go with."""
    if command.rl_phase == "rollout":
        return
    if command.rl_phase == "update":
        raise ConfigError("trainer.kind=grpo trains while the rollout runs: use --rl-phase both")
    if command.debug_mode:
        raise ConfigError("trainer.kind=grpo does not go with --debug-mode: its engines join a pool")
    if command.num_nodes > 1 and config.takes_turns:
        raise ConfigError(
            f"trainer.placement={config.grpo.placement} requires --num-nodes 1, because trainer and engine"
            " take turns within one node; with more nodes use trainer.placement=disaggregated"
        )
    check_processes(config, num_gpus)
    if not config.is_pooled:
        raise ConfigError("trainer.kind=grpo publishes weights to the engines of a pool: add pool=elastic")
    check_placement(config, num_gpus)
    policy, group_size = config.policy_config, config.rollout.group_size
    if (policy.top_p, policy.top_k, policy.min_p) != (1.0, -1, 0.0):
        raise ConfigError(
            "trainer.kind=grpo learns from the whole distribution: set policy_config.top_p=1 top_k=-1 min_p=0"
        )
    if group_size < 2 and config.grpo.loss.advantage != "reinforce":
        raise ConfigError(
            f"rollout.group_size={group_size}: trainer.loss.advantage={config.grpo.loss.advantage} compares"
            " siblings; at least 2 are needed"
        )


def check_processes(config: Config, num_gpus: int) -> None:
    """Refuse more training processes on this node than it has GPUs or, where it trains on a CPU, cores."""
    processes, cores = config.trainer.nproc_per_node or 1, os.cpu_count() or 1
    on_cpu = config.engine.device == "cpu" if config.is_streaming else trains_on_cpu(config, num_gpus)
    if processes > (cores if on_cpu else num_gpus):
        raise ConfigError(
            f"trainer.nproc_per_node={processes}: {num_gpus} GPUs and {cores} cores are there to train on;"
            f" a CPU trains small models with engine=cpu trainer={config.trainer.kind}_cpu"
        )


def check_placement(config: Config, num_gpus: int) -> None:
    """Trainer and engine have the same GPUs only where the placement says so."""
    placement, has_engine = config.grpo.placement, config.pool.local_engine
    if config.shares_gpus and not has_engine:
        raise ConfigError(
            f"trainer.placement={placement}: this node's engine generates on the trainer's GPUs, but"
            " pool.local_engine=false starts none"
        )
    if num_gpus and config.engine.device == "gpu" and has_engine and not config.shares_gpus:
        raise ConfigError(
            "trainer.kind=grpo trains on this node's GPUs: set pool.local_engine=false, and start engines on"
            " others with rl-agent join-pool --gpus; or let them take turns, trainer.placement=hybrid; or,"
            " where both fit, have them at the same time, trainer.placement=shared"
        )


def check_pool(config: Config, command: Command, ours: set[int], environ: Mapping[str, str]) -> None:
    """The manager's settings must be right, and its port free on the master."""
    pool = config.pool
    check_settings(pool, environ, section="pool.")
    if command.rank == 0:  # where the manager runs
        find_policy("pool.policy", pool.policy, pool.module_folders)
    if command.debug_mode:
        raise ConfigError("--debug-mode uses a running engine; with pool=elastic set pool.local_engine=false")
    if config.weights.is_inplace:
        raise ConfigError("weights=inplace is for one engine without a pool; leave it out with pool=elastic")
    if command.rank == 0 and not command.join:
        check_port(f"pool.host={pool.host} pool.port={pool.port}", pool.host, pool.port, ours, OR_ANY_PORT)
        if config.is_streaming:
            check_weights_host(config, ours)


def check_weights_host(config: Config, ours: set[int]) -> None:
    """Refuse an address for giving weights that is not this machine's, or is named twice."""
    port, named = config.weights.port, dict[str, str]()
    for host in config.weights.host or ():
        check_port(f"weights.host={host} weights.port={port}", host, port, ours, OR_ANY_PORT)
        address = str(socket.getaddrinfo(host, None, _family_of(host), socket.SOCK_STREAM)[0][4][0])
        if ipaddress.ip_address(address).is_unspecified:
            raise ConfigError(
                f"weights.host={host}: engines connect to what it says; name the addresses themselves"
            )
        if address in named:
            raise ConfigError(f"weights.host: {named[address]} and {host} are one address; name each once")
        named[address] = host


def check_engine(config: Config, command: Command, ours: set[int], environ: Mapping[str, str]) -> None:
    """The port must be free (or held by a leftover that will be ended); in debug mode an engine answers."""
    if command.rl_phase == "update":
        return
    if config.is_pooled:
        check_pool(config, command, ours, environ)
        return
    engine = config.engine
    if command.debug_mode:
        status = probe(config, environ)
        if status.answer not in (Answer.WANTED, Answer.OLD_VERSION):
            raise MachineError(f"--debug-mode needs an engine of this run that answers; {status.detail}")
        return
    if engine.url is not None:
        raise ConfigError(
            f"engine.url={engine.url} names a running engine, which requires --debug-mode;"
            " the run's own engine listens at engine.host and engine.port"
        )
    named = f"engine.host={engine.host} engine.port={engine.port}"
    check_port(named, engine.host, engine.port, ours, INSTEAD_OF_THE_PORT)


def check_agents(config: EnvConfig, kinds: set[str], ours: set[int]) -> None:
    """Refuse an address in use, where agents' programs are to connect that run already."""
    for kind in kinds if not config.servers else ():
        listen = config.kwargs.get(kind, {}).get("listen")
        if listen is not None and config.kinds[kind] == AGENT:
            key = f"env_config.kwargs.{kind}.listen"
            check_port(f"{key}={listen}", *host_and_port(listen, key), ours, "or choose another port")


def check_port(named: str, host: str, port: int, ours: set[int], otherwise: str) -> None:
    """Refuse a port in use, `named` by its keys, unless by a process of `ours`, which will be ended."""
    if not is_port_free(named, host, port) and not (listeners(port) & ours):
        raise port_in_use(named, port, otherwise)


def port_in_use(named: str, port: int, otherwise: str = INSTEAD_OF_THE_PORT) -> MachineError:
    """Return the error that names who listens on a port."""
    return MachineError(f"{named} is in use by {describe_listeners(port)}; stop that program, {otherwise}")


def is_port_free(named: str, host: str, port: int) -> bool:
    """Return whether `host:port` can be bound. Raises `ConfigError` if `host` is not this machine's."""
    with socket.socket(_family_of(host), socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError(f"{named}: {error.strerror}") from error
    return True


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def describe_listeners(port: int) -> str:
    from rl_agent.system.processes import command_line

    processes = [f"process {pid} ({command_line(pid)})" for pid in sorted(listeners(port))]
    return ", ".join(processes) or "a process of another user"


def check_tasks(config: Config, tasks: Mapping[Split, list[Task]]) -> dict[Split, int]:
    """Look for every environment; returns the tasks of each split that an iteration runs."""
    from rl_agent.env.remote.environments import Environments

    every_task = [task for part in tasks.values() for task in part]
    environments = Environments(config.env_config)
    environments.check({task.env for task in every_task}, every_task)
    if config.policy_config.has_tool_calls:
        environments.classes.check_tools(every_task)
    if config.rollout.reward == "judge":
        check_criteria(every_task)
    env = config.env_config
    sizes = {"train": env.train_tasks_rollout_size, "test": env.test_tasks_rollout_size}
    repeats = {"train": 1, "test": env.test_tasks_repeat_times}
    return {
        split: (len(part) if sizes[split] < 0 else sizes[split]) * repeats[split]
        for split, part in tasks.items()
    }
